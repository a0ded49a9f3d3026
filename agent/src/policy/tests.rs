//! The thread with maps in memory.
