//! The handle with which a handler says on which object a call is, for its audit line.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tonic::Request;
use warren_audit::AuditObject;
use warren_core::state::ObjectKind;
use warren_security::Peer;

use super::methods::CallerRole;

/// A longer name is cut off: before an object is found, it is what the caller sent.
const MAX_NAME: usize = 256;

#[derive(Default)]
struct CallNotes {
    object: Mutex<Option<AuditObject>>,
    is_relayed: AtomicBool,
    role: OnceLock<CallerRole>,
}

/// A call that is handled: its caller, and a place for its object.
#[derive(Clone, Default)]
pub struct AuditedCall {
    peer: Option<Peer>,
    notes: Arc<CallNotes>,
}

impl fmt::Display for AuditedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.peer {
            Some(peer) => peer.fmt(f),
            None => f.write_str("unknown"),
        }
    }
}

impl AuditedCall {
    /// The call of this request.
    pub fn of<T>(request: &Request<T>) -> Self {
        let known = request.extensions().get::<Self>().cloned().unwrap_or_default();
        Self { peer: request.extensions().get().cloned(), ..known }
    }

    /// The object as the request names it, before it is found.
    pub(super) fn named(&self, kind: ObjectKind, reference: &str) {
        let name = reference.chars().take(MAX_NAME).collect();
        let object = AuditObject { kind: kind.noun().into(), name, ..AuditObject::default() };
        *self.object() = Some(object);
    }

    /// The object that was found or written. `version` is that after the write; tasks have none.
    pub(super) fn identified(
        &self,
        kind: ObjectKind,
        id: impl fmt::Display,
        name: impl fmt::Display,
        version: impl Into<Option<u64>>,
    ) {
        let mut object = self.object();
        let detail = object.take().unwrap_or_default().detail;
        let (kind, id, name) = (kind.noun().into(), id.to_string(), name.to_string());
        *object = Some(AuditObject { kind, id, name, version: version.into(), detail });
    }

    /// What else identifies the work.
    pub(super) fn detail(&self, detail: &str) {
        let detail = detail.chars().take(MAX_NAME).collect();
        self.object().get_or_insert_default().detail = detail;
    }

    /// Another manager relays it, and records it.
    pub(super) fn relayed(&self) {
        self.notes.is_relayed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_relayed(&self) -> bool {
        self.notes.is_relayed.load(Ordering::Relaxed)
    }

    /// What the caller was permitted as.
    pub(super) fn permitted_as(&self, role: CallerRole) {
        // It is permitted once.
        let _ = self.notes.role.set(role);
    }

    /// `None` if the caller was not permitted.
    pub(super) fn role(&self) -> Option<CallerRole> {
        self.notes.role.get().copied()
    }

    pub(super) fn object(&self) -> MutexGuard<'_, Option<AuditObject>> {
        self.notes.object.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
