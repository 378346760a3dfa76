//! WireGuard in a process of its own, for machines with or without the kernel's module.
//!
//! The agent of a node starts the process ([`start`]) with the name of a network device and the path of a socket, and
//! configures it over that socket with the protocol that every userspace WireGuard has
//! (<https://www.wireguard.com/xplatform/#configuration-protocol>). The process outlives the agent: the next agent finds
//! it by the socket. It ends when it is told to, and the device with it; or when its device is removed.
//!
//! This crate must never touch routes, rules or addresses, and never write a key to a disk or a log. Only
//! [`run_command`] moves packets. Start reading at `protocol.rs`, the pure part: what must be changed from the present
//! to the desired state.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod control;
mod error;
mod keys;
mod process;
mod protocol;

pub use control::WireGuardControl;
pub use error::Error;
pub use keys::{InvalidKey, WireGuardPrivateKey, WireGuardPublicKey};
pub use process::{COMMAND, WireGuardProgram, run_command, start};
pub use protocol::{PeerState, WireGuardPeer, WireGuardSettings, WireGuardState};

/// UDP port of WireGuard unless another one is chosen.
pub const DEFAULT_PORT: u16 = 51820;

/// Bytes that WireGuard adds to each packet over IPv4: IP, UDP, and 32 bytes of its own.
pub const OVERHEAD: u32 = 60;
