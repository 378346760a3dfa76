//! Tests of the runtime on a real, private containerd, and of its fake. Needs root, containerd, runc and a
//! static busybox.

#![allow(clippy::unwrap_used)]

#[path = "suite/world.rs"]
mod world;

#[path = "suite/beside.rs"]
mod beside;
#[path = "suite/conformance.rs"]
mod conformance;
#[path = "suite/exec.rs"]
mod exec;
#[path = "suite/folders.rs"]
mod folders;
#[path = "suite/images.rs"]
mod images;
#[path = "suite/input.rs"]
mod input;
#[path = "suite/inside.rs"]
mod inside;
#[path = "suite/layers.rs"]
mod layers;
#[path = "suite/logger.rs"]
mod logger;
#[path = "suite/mounts.rs"]
mod mounts;
#[path = "suite/programs.rs"]
mod programs;
#[path = "suite/recovery.rs"]
mod recovery;
#[path = "suite/refusals.rs"]
mod refusals;
#[path = "suite/rights.rs"]
mod rights;
#[path = "suite/strays.rs"]
mod strays;
#[path = "suite/supervision.rs"]
mod supervision;
#[path = "suite/usage.rs"]
mod usage;
#[path = "suite/users.rs"]
mod users;
#[path = "suite/views.rs"]
mod views;
