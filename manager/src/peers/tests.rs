//! Managers talk over real connections; `world` is what they live in, `gate` what can happen on the way.

mod calls;
mod gate;
mod messages;
mod snapshots;
mod strangers;
mod world;
