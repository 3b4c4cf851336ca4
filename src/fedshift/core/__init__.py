"""The contract between methods, engines and deployments."""
