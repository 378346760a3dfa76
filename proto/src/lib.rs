//! The wire format: protobuf messages, gRPC services, and their conversions to and from `warren-types`.
//!
//! Only this crate knows both. A conversion from the wire checks everything and names each invalid field; a
//! conversion to the wire cannot fail. Nothing here decides or does IO. Start reading at
//! `warren/v1/types.proto`, then [`convert`]; [`status`] defines how errors are sent.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod codec;
pub mod convert;
pub mod status;

/// Generated from `warren/v1/*.proto`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("warren.v1");
}

pub use status::Problem;
