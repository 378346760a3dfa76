//! Several managers of one cluster, and what is left of it when some of them are gone.
//!
//! Start reading at [`group`].

mod away;
mod certificates;
mod elsewhere;
mod everywhere;
mod forming;
mod group;
mod host;
mod leaving;
mod recovery;
mod registers;
mod workers;
