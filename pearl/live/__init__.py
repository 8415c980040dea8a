"""The live side: the same decisions carried out on real engines. Importing this package imports nothing heavy."""
