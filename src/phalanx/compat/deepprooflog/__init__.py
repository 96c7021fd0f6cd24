"""Drop-in replacements for modules of DeepProofLog."""
