//! What time has decided, appended.
