"""Names of DeepProofLog."""
