//! The programs that run inside or beside containers, and their installation on a node.
//!
//! * `warren-logger` (`program/logger.rs`) is the small program that containerd's shim starts for each
//!   container when its output is a URI such as
//!   `binary:///PROGRAM?dir=/DIRECTORY&max-size=1000000&max-files=3`. It runs independently of the
//!   agent and containerd, and writes the files that `pkg/container-logs/` describes and reads.
//! * `warren-init` (`program/init.rs`) is the first process of a container that asks for one, or for an input.
//! * `warren-exec` (`program/exec.rs`) runs a program inside a running container; [`plan`] is its input.
//! * `warren-namespaces` (`program/namespaces.rs`) makes the user namespace of a container for the agent.
//! * [`ensure_installed`] writes these programs, embedded in this library, to an executable path; [`exec_program`] is
//!   `warren-exec`, which is executed from memory.
//!
//! The programs must depend only on the standard library.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod install;
pub mod plan;

// The modules of the programs that can be unit-tested here.
#[cfg(test)]
#[path = "program/arguments.rs"]
mod arguments;
#[cfg(test)]
#[allow(dead_code)]
#[path = "program/cgroups.rs"]
mod cgroups;
#[cfg(test)]
#[allow(dead_code)]
#[path = "program/child.rs"]
mod child;
#[cfg(test)]
#[path = "program/splitter.rs"]
mod splitter;
#[cfg(test)]
#[allow(dead_code)]
#[path = "program/system.rs"]
mod system;
#[cfg(test)]
use warren_container_logs::{record, writer};

pub use error::Error;
pub use install::{ContainerPrograms, ensure_installed, exec_program};
