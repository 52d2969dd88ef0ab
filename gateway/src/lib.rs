//! One session per node: WebSocket and mutual TLS around the session machine; joins and certificates.
