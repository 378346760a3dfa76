//! End to end: the `warren` executable as a person starts it, on real containerd, containers and networks.
//!
//! Every test has a world of its own ([`world`]): a lab host that runs one node with its own directories and its
//! own containerd, and a second host that looks at it from outside. Cases that need no node of their own share
//! one and are rows of a table: `inside::FIELDS`, `refusals::REFUSED`, `refusals::BROKEN`, `starting::STARTS`.
//! No test may look at what Warren believes where the machine itself can be asked.

#![allow(clippy::unwrap_used)]

mod e2e {
    pub mod chaos;
    pub mod cluster;
    pub mod contents;
    pub mod damage;
    pub mod demo;
    pub mod disconnected;
    pub mod disks;
    pub mod ending;
    pub mod first_minutes;
    pub mod full_disk;
    pub mod health;
    pub mod inside;
    pub mod joining;
    pub mod logs;
    pub mod losses;
    pub mod lost_machines;
    pub mod managers;
    pub mod probes;
    pub mod pulls;
    pub mod recovery;
    pub mod refusals;
    pub mod removed;
    pub mod restart;
    pub mod restarts;
    pub mod starting;
    pub mod strays;
    pub mod task;
    pub mod traffic;
    pub mod trio;
    pub mod updates;
    pub mod volumes;
    pub mod workers;
    pub mod world;
}
