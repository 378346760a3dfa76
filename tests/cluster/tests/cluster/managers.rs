//! Several managers of one cluster, and what is left of it when some of them are gone.
//!
//! Start reading at [`group`].

mod answers;
mod away;
mod calls;
mod certificates;
mod elsewhere;
mod everywhere;
mod forming;
mod full_disk;
mod group;
mod host;
mod identity;
mod leaving;
mod recovery;
mod registers;
mod watching;
mod workers;
