"""The only orchestrator: plan, build, inspect, smoke, evidence, tag."""
