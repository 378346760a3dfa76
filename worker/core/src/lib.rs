//! The life of one task on its node, as pure functions: what is wanted and what was found go in, the next
//! action comes out.
//!
//! Nothing here does IO, reads a clock or draws a random number: the shell (`warren-worker`) looks, acts,
//! and writes what came of it into [`Found`]. One action at a time, each harmless the second time, so that
//! a crash between any two of them only means that some action is done again. Start reading at [`step()`],
//! then [`Found`]; [`Ledger`] is what survives the agent. Beside the tasks there are what a node was told
//! ([`Wishes`]), what it is yet to say ([`Outbox`]) and for how long nobody spoke to it ([`Contact`]).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod action;
mod contact;
mod found;
mod ledger;
mod order;
mod outbox;
mod report;
mod restart;
mod step;
mod wishes;
mod words;

pub use action::{Action, Verb};
pub use contact::{Contact, START_GRACE, Standing};
pub use found::{Checked, Container, Found, Image, Ports, Presence, Severity, Sight, StopSent, Trouble};
pub use ledger::{DecodeLedgerError, Ledger, Phase, Verdict};
pub use order::supersedes;
pub use outbox::{BATCH, Batch, CONFIRMED_WITHIN, MAX_IN_FLIGHT, Outbox};
pub use report::{is_worth_telling, report};
pub use step::{Step, pin, step};
pub use wishes::{Gap, Wishes};
