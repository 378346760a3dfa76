//! Documents of objects: `apiVersion: warren.io/v1`, a kind, metadata and a spec, as `warren apply` reads them.
//!
//! Pure: files are read by the caller, and nothing is sent. A document's spec is the serde form of the types in
//! `warren-types`, so a field that is added there is a field of documents and of their schema. Every problem has a
//! file, line and column; unknown fields are problems. The text of secrets is never part of a problem.
//! Start reading at [`Documents::read`], then `reader` (a tree of YAML to a type) and [`schema`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission_policy;
mod documents;
mod format;
mod locate;
mod reader;
mod schema;

pub use admission_policy::{admission_policy_document, read_admission_policy};
pub use documents::{DataSource, Documents, NamedObject, NodeDocument, SourceText};
pub use format::{API_VERSION, DocumentKind, NetworkFields, NodeFields, SecretObjectFields, VolumeFields};
pub use format::{document, service_document};
pub use schema::schema;
