#![expect(unused_imports, reason = "tests follow")]
use super::*;
