"""What is replicated: requests that become operations, and ids on their way in and out."""
