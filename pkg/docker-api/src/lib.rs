//! The Docker Engine API on a unix socket and over TLS: a translation onto the API of the managers, for the clients of
//! Docker.
//!
//! It stores only the programs that its clients start, and decides nothing: every request becomes calls of
//! [`warren_client`] by the caller of the request, and every answer is made from theirs. A field of Docker is honoured,
//! or refused with its path; one that is not known to Docker is ignored, as Docker does.
//!
//! Start reading at [`server`]; then `router`, which has all paths, and `spec`, which converts services.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![recursion_limit = "256"]

mod archive;
mod attach;
mod containers;
mod disk_usage;
mod docker_error;
mod events;
mod exit_codes;
mod filters;
mod frames;
mod hang_up;
mod images;
mod lifecycle;
mod logs;
mod model;
mod networks;
mod nodes;
mod object_ids;
mod objects;
mod one_off;
mod processes;
mod programs;
mod request;
mod response;
mod router;
mod secret_objects;
pub mod server;
mod services;
mod spec;
mod stats;
mod swarm;
pub mod swarm_import;
mod system;
mod task_ids;
mod tasks;
mod volumes;
