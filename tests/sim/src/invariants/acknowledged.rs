//! What a client was told has happened is there, at every manager that has applied as much.

use warren_core::State;
use warren_types::ServiceId;

use crate::client::{Client, Promise};

/// All that a client was promised, but for what it is changing now.
pub fn all(state: &State, client: &Client) -> Result<(), String> {
    let mut certain = client.promises.iter().filter(|(id, _)| client.uncertain() != Some(**id));
    certain.try_for_each(|(id, promise)| one(state, *id, promise))?;
    client.secrets_are_kept(state)
}

/// One promise.
pub fn one(state: &State, service: ServiceId, promise: &Promise) -> Result<(), String> {
    if state.applied().index < promise.since {
        return Ok(());
    }
    let found = state.service(&service);
    let kept = match promise.wanted() {
        Some(spec) => found.is_some_and(|found| !found.removing && *found.spec == **spec),
        None => found.is_none_or(|found| found.removing),
    };
    if kept {
        return Ok(());
    }
    Err(format!("acknowledged writes are present: {promise:?} of {service}, found {found:?}"))
}

/// The promise was of something that had been applied somewhere.
pub fn chosen(newest: &State, promise: &Promise) -> Result<(), String> {
    let applied = newest.applied().index;
    if promise.since <= applied {
        return Ok(());
    }
    Err(format!("acknowledged writes are present: {promise:?} when {applied} was the last entry"))
}
