//! The client against a manager that is scripted, over the real transports.

mod calls;
mod connections;
mod fake;
mod following;
mod streams;
mod writes;
