"""The crash test of meshes: drivers, Python workers and gateways are killed while records flow."""
