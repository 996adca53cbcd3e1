"""Reinforcement learning algorithms: PPO and SHAC (extra `rl`)."""
