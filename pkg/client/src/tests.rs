//! The client against a manager that is scripted, over the real transports.

mod calls;
mod connections;
mod failover;
mod renewal;
mod scripted_server;
mod streams;
mod writes;
