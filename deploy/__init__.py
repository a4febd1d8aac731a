"""What a deployment needs besides the app: credentials, services, a demonstration."""
