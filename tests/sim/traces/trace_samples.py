"""A small, valid text of every trace format."""

import json
from pathlib import Path

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"

OWN = """# a comment
at_s,event,node,gpus,grace_s
0.0,add,a,1,
0.0,add,b,1,
60.5,reclaim,a,1,30.0
90.0,add,big,8,
120.0,end,,,
"""
PARCAE = """[0, "add", {"nodes": ["n0", "n1"], "duration": 60000, "throughput_opt_strategy": [2, 9]}]
[60000, "no-op", {"nodes": [], "duration": 60000}]
[120000, "remove", {"nodes": ["n0"], "duration": 60000}]
"""
BAMBOO_EVENTS = "0,add,node1\r\n0,add,node2\r\n60000,remove,node1\r\n90000,add,node3\r\n"
BAMBOO_COUNTS = """2021-12-10, 13:00:00, 4
2021-12-10, 13:01:00, 4
2021-12-10, 13:02:00, 4
2021-12-10, 13:01:00, 2
2021-12-10, 13:03:00, 3
"""
SKYPILOT = json.dumps({"metadata": {"gap_seconds": 300}, "data": [0, 2, 2, 1]})
KV_TABLE = """trace,turn,ctx_tokens,new_prompt_tokens,out_tokens,api_s,gap_s,gap_is_tool
t1,0,1000,1000,50,3.0,0,0
t1,1,1200,250,40,2.0,4.0,1
t1,2,1400,200,30,2.0,500.0,0
t2,0,900,900,10,1.0,0,0
t2,1,400,400,20,1.0,6.0,1
"""
KV_SESSION = json.dumps(
    {
        "id": "s",
        "block_size": 64,
        "requests": [
            {"t": 0.0, "type": "n", "in": 100, "out": 20, "think_time": 0.0, "input_types": ["text"]},
            {"t": 1.0, "type": "subagent", "requests": [
                {"t": 1.0, "type": "n", "in": 70, "out": 5, "think_time": 0.0, "input_types": ["text"]},
            ]},
            {"t": 9.0, "type": "n", "in": 150, "out": 10, "think_time": 7.0, "input_types": ["tool_result"]},
        ],
    }
)  # fmt: skip
MOONCAKE = """{"timestamp": 0, "input_length": 1200, "output_length": 100, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 1100, "output_length": 10, "hash_ids": [0, 7, 8]}
{"timestamp": 9000, "input_length": 2100, "output_length": 50, "hash_ids": [0, 1, 3, 6, 9]}
{"timestamp": 9500, "input_length": 1600, "output_length": 60, "hash_ids": [0, 1, 4, 5]}
"""
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0,110,27"
SWE_AGENT = json.dumps(
    {
        "trajectory": [
            {"response": "look around", "action": "ls", "observation": "x" * 400, "execution_time": 0.25},
            {"response": "done", "action": "done", "observation": "", "execution_time": 0.5},
        ],
        "history": [
            {"role": "system", "content": "s" * 300},
            {"role": "user", "content": [{"type": "text", "text": "u" * 100}]},
            {"role": "assistant", "content": "look around"},
        ],
    },
    indent=1,
)

AVAILABILITY = {
    "csv": OWN,
    "parcae": PARCAE,
    "bamboo-events": BAMBOO_EVENTS,
    "bamboo-counts": BAMBOO_COUNTS,
    "skypilot": SKYPILOT,
}
AGENTS = {
    "kv-table": KV_TABLE,
    "kv-session": KV_SESSION,
    "mooncake": MOONCAKE,
    "azure": AZURE,
    "swe-agent": SWE_AGENT,
}
