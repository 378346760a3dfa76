//! Tests against a real kernel, in private network namespaces: nothing outside them is touched.
#![allow(clippy::unwrap_used)]

mod churn;
mod cluster;
mod conformance;
mod ingress;
mod isolation;
mod lab;
mod leftovers;
mod overlay;
mod preconditions;
mod published;
mod reach;
mod repair;
mod routes;
mod wireguard;
