//! Whose certificate a question is about, by name, id or key.

use warren_types::{ADMINISTRATOR, ManagerId, NodeId, PublicKeyHash, UserId};

use crate::state::{Refusal, State};

/// The fewest digits of a key that name it.
const MIN_KEY_DIGITS: usize = 8;
/// How many digits of a key are shown.
const SHOWN_KEY_DIGITS: usize = 16;

/// Whose certificate it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateHolder {
    /// A manager; the answer has the certificate of the node on its machine as well.
    Manager(ManagerId),
    /// A manager that left the cluster.
    DepartedManager(ManagerId),
    /// A node.
    Node(NodeId),
    /// A node that was removed.
    RemovedNode(NodeId),
    /// A user, with all its keys.
    User(UserId),
    /// A key of a user or of the administrator of a manager's machine, also one that is revoked.
    Key(PublicKeyHash),
}

impl CertificateHolder {
    /// The holder with that name, id, or unique prefix of an id, or `KIND/NAME` with the kinds `manager`, `node` and
    /// `user`. What is gone is found by its whole id, a key by its first 8 digits, and a removed user by its name.
    ///
    /// # Errors
    /// [`Refusal::NoCertificate`], [`Refusal::AmbiguousName`].
    pub fn find(state: &State, reference: &str) -> Result<Self, Refusal> {
        Self::find_among(state, reference, |_| true)
    }

    /// The same among machines, as if there were no users.
    ///
    /// # Errors
    /// As [`CertificateHolder::find`].
    pub fn find_machine(state: &State, reference: &str) -> Result<Self, Refusal> {
        Self::find_among(state, reference, |holder| holder.noun() != "user")
    }

    fn find_among(
        state: &State,
        reference: &str,
        is_wanted: impl Fn(&Self) -> bool,
    ) -> Result<Self, Refusal> {
        let (noun, name) = reference.split_once('/').unwrap_or(("", reference));
        let mut found = existing(state, noun, name);
        found.retain(&is_wanted);
        let is_named = |holder: &Self| holder.name(state).as_deref() == Some(name);
        if found.iter().any(is_named) {
            found.retain(is_named);
        }
        match found.as_slice() {
            [only] => Ok(*only),
            [] => {
                let missing = || Refusal::NoCertificate { reference: reference.to_owned() };
                former(state, noun, name).filter(is_wanted).ok_or_else(missing)
            }
            several => {
                let shown = |holder: &Self| format!("certificate/{}/{name}", holder.noun());
                let candidates = several.iter().map(shown).collect();
                Err(Refusal::AmbiguousName { reference: reference.to_owned(), candidates })
            }
        }
    }

    fn noun(&self) -> &'static str {
        match self {
            Self::Manager(_) | Self::DepartedManager(_) => "manager",
            Self::Node(_) | Self::RemovedNode(_) => "node",
            Self::User(_) | Self::Key(_) => "user",
        }
    }

    /// Its id as text; of a key, all digits.
    pub(in crate::why) fn id(&self) -> String {
        match self {
            Self::Manager(id) | Self::DepartedManager(id) => id.to_string(),
            Self::Node(id) | Self::RemovedNode(id) => id.to_string(),
            Self::User(id) => id.to_string(),
            Self::Key(key) => key.to_string(),
        }
    }

    /// Its name, if it exists. What is gone has none but its id.
    pub(in crate::why) fn name(&self, state: &State) -> Option<String> {
        Some(match self {
            Self::Manager(id) => state.member_of_manager(id)?.name.to_string(),
            Self::Node(id) => state.node(id)?.name.to_string(),
            Self::User(id) => state.user(id)?.name.to_string(),
            Self::Key(key) => shown_key(key),
            Self::DepartedManager(_) | Self::RemovedNode(_) => self.id(),
        })
    }
}

/// The first digits of a key.
pub(super) fn shown_key(key: &PublicKeyHash) -> String {
    key.to_string().chars().take(SHOWN_KEY_DIGITS).collect()
}

/// At most one of each kind.
fn existing(state: &State, noun: &str, name: &str) -> Vec<CertificateHolder> {
    let is_wanted = |kind: &str| noun.is_empty() || noun == kind;
    let member = state.find_member(name).ok().filter(|_| is_wanted("manager"));
    let own_node = member.and_then(|member| state.node_of_manager(&member.name));
    let node = state.find_node(name).ok().filter(|_| is_wanted("node"));
    // The answer about a manager has that of its node.
    let node = node.filter(|node| own_node.is_none_or(|own| own.id != node.id));
    let user = state.find_user(name).ok().filter(|_| is_wanted("user"));
    let holders = [
        member.map(|member| CertificateHolder::Manager(member.manager_id)),
        node.map(|node| CertificateHolder::Node(node.id)),
        user.map(|user| CertificateHolder::User(user.id)),
    ];
    holders.into_iter().flatten().collect()
}

/// A machine that is gone, or a key.
fn former(state: &State, noun: &str, name: &str) -> Option<CertificateHolder> {
    let is_wanted = |kind: &str| noun.is_empty() || noun == kind;
    let node = name.parse::<NodeId>().ok();
    if let Some(id) = node.filter(|id| is_wanted("node") && state.node_removed_at(id).is_some()) {
        return Some(CertificateHolder::RemovedNode(id));
    }
    let manager = name.parse::<ManagerId>().ok();
    if let Some(id) = manager.filter(|id| is_wanted("manager") && state.departed_manager(id).is_some()) {
        return Some(CertificateHolder::DepartedManager(id));
    }
    let key = find_key(state, name).or_else(|| newest_revoked(state, name));
    key.filter(|_| is_wanted("user")).map(CertificateHolder::Key)
}

/// The only key that begins with these digits.
fn find_key(state: &State, digits: &str) -> Option<PublicKeyHash> {
    if digits.len() < MIN_KEY_DIGITS {
        return None;
    }
    let digits = digits.to_ascii_lowercase();
    let listed = state.users().flat_map(|user| user.keys.keys().copied());
    let administrators = state.members().filter_map(|member| member.administrator_key);
    let revoked = state.revoked_keys().map(|(key, _)| *key);
    let all = listed.chain(administrators).chain(revoked);
    let mut matching: Vec<PublicKeyHash> = all.filter(|key| key.to_string().starts_with(&digits)).collect();
    matching.sort_unstable();
    matching.dedup();
    match matching[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// The key of a removed user that was revoked last. Administrators of machines share a name.
fn newest_revoked(state: &State, holder: &str) -> Option<PublicKeyHash> {
    let of_holder = state.revoked_keys().filter(|(_, revoked)| revoked.holder == holder);
    let newest = of_holder.max_by_key(|(_, revoked)| revoked.revoked_at);
    newest.map(|(key, _)| *key).filter(|_| holder != ADMINISTRATOR)
}
