//! Pulls into a private containerd, from a real registry and from a scripted one with invalid behaviour.
//! Needs root, containerd and docker-registry.

#![allow(clippy::unwrap_used)]

#[path = "suite/scripted.rs"]
mod scripted;
#[path = "suite/world.rs"]
mod world;

#[path = "suite/access.rs"]
mod access;
#[path = "suite/copies.rs"]
mod copies;
#[path = "suite/disk.rs"]
mod disk;
#[path = "suite/documents.rs"]
mod documents;
#[path = "suite/flights.rs"]
mod flights;
#[path = "suite/garbage.rs"]
mod garbage;
#[path = "suite/layers.rs"]
mod layers;
#[path = "suite/limits.rs"]
mod limits;
#[path = "suite/pins.rs"]
mod pins;
#[path = "suite/real.rs"]
mod real;
#[path = "suite/resume.rs"]
mod resume;
#[path = "suite/tls.rs"]
mod tls;
