//! End to end: the `warren` executable as a user starts it, on real containerd, containers and networks.
//!
//! Every test has its own fixture ([`fixture`]): a lab host that runs one node with its own directories and
//! its own containerd, and a second host as a client. Cases that need no separate node share one and are rows
//! of a table: `container_fields::FIELDS`, `invalid_input::REFUSED`, `invalid_input::BROKEN`,
//! `node_start::STARTS`.
//! Tests start in the order of their names. One that takes a minute is not among the last ones, where it would run
//! alone.
//! No test may rely on Warren's records where it can read the state of the machine itself.

#![allow(clippy::unwrap_used)]

mod e2e {
    pub mod applications;
    pub mod book;
    pub mod chaos;
    pub mod cluster;
    pub mod container_fields;
    pub mod copy;
    pub mod demo;
    pub mod disconnected;
    pub mod documents;
    pub mod ended_tasks;
    pub mod exec;
    pub mod first_day;
    pub mod fixture;
    pub mod forward;
    pub mod full_worker_disk;
    pub mod getting_started;
    pub mod handover;
    pub mod health;
    pub mod image_copy;
    pub mod invalid_input;
    pub mod joining;
    pub mod logs;
    pub mod lost_containerd;
    pub mod lost_machines;
    pub mod manager_disk;
    pub mod manager_upgrade;
    pub mod managers;
    pub mod network_repair;
    pub mod networks;
    pub mod node_cleanup;
    pub mod node_restart;
    pub mod node_start;
    pub mod node_verification;
    pub mod orphans;
    pub mod privileges;
    pub mod published_files;
    pub mod pulls;
    pub mod recovery;
    pub mod removed;
    pub mod restart_policy;
    pub mod restarted_tasks;
    pub mod rollouts;
    pub mod scheduling;
    pub mod secrets;
    pub mod stack_builds;
    pub mod stacks;
    pub mod storage_limit;
    pub mod task_document;
    pub mod telemetry;
    pub mod three_managers;
    pub mod traffic;
    pub mod updates;
    pub mod user_namespaces;
    pub mod volumes;
}
