"""Where responses come from outside PPO: the model in this process, or a server of its folder."""
