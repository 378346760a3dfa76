//! The object that a question is about, by its name.

use warren_types::{NetworkId, NodeId, SecretObjectId, SecretObjectKind, ServiceId, TaskId, VolumeId};

use super::CertificateHolder;
use crate::state::{ObjectKind, Refusal, State};

/// An object that `why` answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the object of that name")]
pub enum WhyTarget {
    Service(ServiceId),
    Task(TaskId),
    Node(NodeId),
    Volume(VolumeId),
    Network(NetworkId),
    SecretObject(SecretObjectId),
    Certificate(CertificateHolder),
}

/// The noun of certificates, which are no objects: `certificate/ann`.
pub const CERTIFICATE: &str = "certificate";

/// The kinds that have an answer, in the order in which a bare name is looked up.
const KINDS: [ObjectKind; 7] = [
    ObjectKind::Service,
    ObjectKind::Task,
    ObjectKind::Node,
    ObjectKind::Network,
    ObjectKind::Volume,
    ObjectKind::SecretObject(SecretObjectKind::Secret),
    ObjectKind::SecretObject(SecretObjectKind::Config),
];

impl WhyTarget {
    /// The object of that kind, or of the only kind that has one, with that name, id or prefix of an id. Names come
    /// before ids.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::NothingNamed`], [`Refusal::Ambiguous`], [`Refusal::AmbiguousName`];
    /// [`Refusal::NoAnswerFor`] for another kind.
    pub fn find(state: &State, kind: Option<ObjectKind>, reference: &str) -> Result<Self, Refusal> {
        match kind {
            Some(kind) if KINDS.contains(&kind) => Self::of_kind(state, kind, reference),
            Some(kind) => Err(Refusal::NoAnswerFor { kind }),
            None => Self::of_any_kind(state, reference),
        }
    }

    /// The certificate of that holder.
    ///
    /// # Errors
    /// As [`CertificateHolder::find`].
    pub fn find_certificate(state: &State, reference: &str) -> Result<Self, Refusal> {
        CertificateHolder::find(state, reference).map(Self::Certificate)
    }

    fn of_kind(state: &State, kind: ObjectKind, reference: &str) -> Result<Self, Refusal> {
        Ok(match kind {
            ObjectKind::Task => Self::Task(state.find_task(reference)?.id),
            ObjectKind::Node => Self::Node(state.find_node(reference)?.id),
            ObjectKind::Network => Self::Network(state.find_network(reference)?.id),
            ObjectKind::Volume => Self::Volume(state.find_volume(reference)?.id),
            ObjectKind::SecretObject(kind) => {
                Self::SecretObject(state.find_secret_object(kind, reference)?.id)
            }
            _ => Self::Service(state.find_service(reference)?.id),
        })
    }

    fn of_any_kind(state: &State, reference: &str) -> Result<Self, Refusal> {
        let mut ambiguous = None;
        let mut found: Vec<Self> = Vec::new();
        for kind in KINDS {
            match Self::of_kind(state, kind, reference) {
                Ok(target) => found.push(target),
                Err(refusal @ Refusal::Ambiguous { .. }) => ambiguous = Some(refusal),
                Err(_) => {}
            }
        }
        if found.iter().any(|target| target.is_named(state, reference)) {
            found.retain(|target| target.is_named(state, reference));
        }
        match (found.as_slice(), ambiguous) {
            ([only], _) => Ok(*only),
            ([], Some(refusal)) => Err(refusal),
            ([], None) => Err(Refusal::NothingNamed { reference: reference.to_owned() }),
            (several, _) => {
                let shown = several.iter().filter_map(|it| Some((it.noun(state)?, it.name(state)?)));
                let candidates = shown.map(|(noun, name)| format!("{noun}/{name}")).collect();
                Err(Refusal::AmbiguousName { reference: reference.to_owned(), candidates })
            }
        }
    }

    fn is_named(&self, state: &State, reference: &str) -> bool {
        self.name(state).as_deref() == Some(reference)
    }

    /// Its noun, if it exists: `service`.
    pub fn noun(&self, state: &State) -> Option<&'static str> {
        let kind = match self {
            Self::Service(_) => ObjectKind::Service,
            Self::Task(_) => ObjectKind::Task,
            Self::Node(_) => ObjectKind::Node,
            Self::Volume(_) => ObjectKind::Volume,
            Self::Network(_) => ObjectKind::Network,
            Self::SecretObject(id) => ObjectKind::SecretObject(state.secret_object(id)?.kind),
            Self::Certificate(_) => return Some(CERTIFICATE),
        };
        Some(kind.noun())
    }

    /// Its id as text.
    pub fn id(&self) -> String {
        match self {
            Self::Service(id) => id.to_string(),
            Self::Task(id) => id.to_string(),
            Self::Node(id) => id.to_string(),
            Self::Volume(id) => id.to_string(),
            Self::Network(id) => id.to_string(),
            Self::SecretObject(id) => id.to_string(),
            Self::Certificate(holder) => holder.id(),
        }
    }

    /// Its name, if it exists: `web.1` for a task.
    pub fn name(&self, state: &State) -> Option<String> {
        Some(match self {
            Self::Service(id) => state.service(id)?.spec.name.to_string(),
            Self::Task(id) => {
                let (task, service) = (state.task(id)?, state.service(&id.service)?);
                format!("{}.{}", service.spec.name, task.slot)
            }
            Self::Node(id) => state.node(id)?.name.to_string(),
            Self::Volume(id) => state.volume(id)?.name.to_string(),
            Self::Network(id) => state.network(id)?.name.to_string(),
            Self::SecretObject(id) => state.secret_object(id)?.name.to_string(),
            Self::Certificate(holder) => holder.name(state)?,
        })
    }
}
