* PEARL model: 5 variables, 6 rows, 2 tiers
* tier 0 makespan (the objective below), tolerance 0 ppb:
* tier 1 churn, tolerance 20000000 ppb:
*    - 1 y_pre_1_prefill + 1 unused + 3
* row range: rule limit churn at p.yaml:7:1
* row no_bound has no bound and is left out
* variable y_pre_1_prefill is y[pre-1,prefill]
* variable y_pre_1_prefill_2 is y[pre 1,prefill]
* variable v_e9 is e9
* variable v_free is free
* row r_equal is equal
* row at_most is at most
* row at_least is at least
* row no_bound is no bound
* row makespan_2 is makespan
NAME pearl
ROWS
 N makespan
 G range
 E r_equal
 L at_most
 G at_least
 G makespan_2
COLUMNS
 MARKER 'MARKER' 'INTORG'
 y_pre_1_prefill makespan 3
 y_pre_1_prefill range 1
 y_pre_1_prefill r_equal 1
 y_pre_1_prefill at_least 1
 y_pre_1_prefill_2 makespan 2
 y_pre_1_prefill_2 range -2
 y_pre_1_prefill_2 r_equal 1
 y_pre_1_prefill_2 at_most 3
 v_e9 at_least 5
 v_free makespan -1
 v_free r_equal -1
 unused makespan 0
 MARKER 'MARKER' 'INTEND'
RHS
 RHS makespan 40
 RHS range -4
 RHS r_equal 2
 RHS at_most 9
 RHS at_least 11
 RHS makespan_2 -1
RANGES
 RNG range 10
 RNG makespan_2 5
BOUNDS
 LO BND y_pre_1_prefill 0
 UP BND y_pre_1_prefill 8
 LO BND y_pre_1_prefill_2 -3
 UP BND y_pre_1_prefill_2 8
 LO BND v_e9 2
 UP BND v_e9 2
 LO BND v_free 0
 UP BND v_free 1
 LO BND unused -5
 UP BND unused -1
ENDATA
