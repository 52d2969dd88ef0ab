//! Replay: the log folded again and compared with the live tables.
