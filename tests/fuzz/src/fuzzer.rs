//! Runs libFuzzer with the target that `WARREN_FUZZ_TARGET` names. `run.sh` builds and starts it.
#![no_main]
#![allow(unsafe_code)] // libFuzzer is C++ and calls an exported function.

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use warren_test_fuzz::{FuzzTarget, TARGETS, target};

static TARGET: LazyLock<FuzzTarget> = LazyLock::new(|| {
    let name = std::env::var("WARREN_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        panic!("WARREN_FUZZ_TARGET is {name:?}; set it to one of {:?}", TARGETS.map(|(name, _)| name))
    })
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
