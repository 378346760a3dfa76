//! Resolves references of users: a name, an id, or a unique prefix of an id; `web.3` for a slot.

use std::sync::Arc;

use warren_types::{
    Id, ManagerId, Member, Network, NetworkId, Node, NodeId, SecretObject, SecretObjectId, SecretObjectKind,
    Service, ServiceId, Task, TaskId, Token, TokenId, User, UserId, Volume, VolumeId,
};

use crate::state::{ObjectKind, Refusal, State};

/// Digits of an id.
const DIGITS: usize = 25;
/// How many matches an error lists.
const MAX_LISTED_MATCHES: usize = 3;

impl State {
    /// The service with that name, id, or unique prefix of an id; a name takes precedence.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Ambiguous`].
    pub fn find_service(&self, reference: &str) -> Result<&Arc<Service>, Refusal> {
        let named = self.index.service_names.get(reference).and_then(|id| self.services.get(id));
        named.map_or_else(
            || {
                let services = |(least, greatest)| {
                    self.services.range(ServiceId(least)..=ServiceId(greatest)).map(|(_, service)| service)
                };
                find_unique(ObjectKind::Service, reference, id_range(reference).map(services), |service| {
                    service.id.to_string()
                })
            },
            Ok,
        )
    }

    /// The node with that name, id, or unique prefix of an id; a name takes precedence.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Ambiguous`].
    pub fn find_node(&self, reference: &str) -> Result<&Arc<Node>, Refusal> {
        let named = self.index.node_names.get(reference).and_then(|id| self.nodes.get(id));
        named.map_or_else(
            || {
                let nodes = |(least, greatest)| {
                    self.nodes.range(NodeId(least)..=NodeId(greatest)).map(|(_, node)| node)
                };
                find_unique(ObjectKind::Node, reference, id_range(reference).map(nodes), |node| {
                    node.id.to_string()
                })
            },
            Ok,
        )
    }

    /// The token with that id, or unique prefix of an id.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Ambiguous`].
    pub fn find_token(&self, reference: &str) -> Result<&Arc<Token>, Refusal> {
        let tokens =
            |(least, greatest)| self.tokens.range(TokenId(least)..=TokenId(greatest)).map(|(_, token)| token);
        find_unique(ObjectKind::Token, reference, id_range(reference).map(tokens), |token| {
            token.id.to_string()
        })
    }

    /// The user with that name, id, or unique prefix of an id; a name takes precedence.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Ambiguous`].
    pub fn find_user(&self, reference: &str) -> Result<&Arc<User>, Refusal> {
        let named = self.index.user_names.get(reference).and_then(|id| self.users.get(id));
        let users =
            |(least, greatest)| self.users.range(UserId(least)..=UserId(greatest)).map(|(_, user)| user);
        let any = || {
            find_unique(ObjectKind::User, reference, id_range(reference).map(users), |user| {
                user.id.to_string()
            })
        };
        named.map_or_else(any, Ok)
    }

    /// The secret object of that kind with that name, id, or unique prefix of an id; a name takes precedence.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Ambiguous`].
    pub fn find_secret_object(
        &self,
        kind: SecretObjectKind,
        reference: &str,
    ) -> Result<&Arc<SecretObject>, Refusal> {
        let name = reference.parse().ok();
        let named = name.and_then(|name| self.secret_object_by_name(kind, &name));
        let secret_objects = |(least, greatest)| {
            let found = self.secret_objects.range(SecretObjectId(least)..=SecretObjectId(greatest));
            found.map(|(_, content)| content).filter(|content| content.kind == kind)
        };
        let any = || {
            let matches = id_range(reference).map(secret_objects);
            find_unique(ObjectKind::SecretObject(kind), reference, matches, |content| content.id.to_string())
        };
        named.map_or_else(any, Ok)
    }

    /// The volume with that name, id, or unique prefix of an id; a name takes precedence.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Ambiguous`].
    pub fn find_volume(&self, reference: &str) -> Result<&Arc<Volume>, Refusal> {
        let named = self.index.volume_names.get(reference).and_then(|id| self.volumes.get(id));
        let volumes = |(least, greatest)| {
            self.volumes.range(VolumeId(least)..=VolumeId(greatest)).map(|(_, volume)| volume)
        };
        let any = || {
            find_unique(ObjectKind::Volume, reference, id_range(reference).map(volumes), |volume| {
                volume.id.to_string()
            })
        };
        named.map_or_else(any, Ok)
    }

    /// The network with that name, id, or unique prefix of an id; a name takes precedence.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Ambiguous`].
    pub fn find_network(&self, reference: &str) -> Result<&Arc<Network>, Refusal> {
        let named = self.index.network_names.get(reference).and_then(|id| self.networks.get(id));
        let networks = |(least, greatest)| {
            self.networks.range(NetworkId(least)..=NetworkId(greatest)).map(|(_, network)| network)
        };
        let any = || {
            find_unique(ObjectKind::Network, reference, id_range(reference).map(networks), |network| {
                network.id.to_string()
            })
        };
        named.map_or_else(any, Ok)
    }

    /// The manager with that name, id, unique prefix of an id, or address; a name takes precedence. Of
    /// several with one name or address, the one that is not being removed or replaced.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Ambiguous`].
    pub fn find_member(&self, reference: &str) -> Result<&Arc<Member>, Refusal> {
        let place =
            |member: &&Arc<Member>| (member.removing, self.replacement_of(member.member_id).is_some());
        let named = self.members().filter(|member| member.name.as_str() == reference).min_by_key(place);
        let address = reference.parse().ok();
        let reached =
            || self.members().filter(|member| address.as_ref() == Some(&member.address)).min_by_key(place);
        let any = || {
            let begins = |(least, greatest)| {
                let range = ManagerId(least)..=ManagerId(greatest);
                self.members().filter(move |member| range.contains(&member.manager_id))
            };
            find_unique(ObjectKind::Manager, reference, id_range(reference).map(begins), |member| {
                member.manager_id.to_string()
            })
        };
        named.or_else(reached).map_or_else(any, Ok)
    }

    /// The task with that id (the service's part may be shortened as for a service), or the current task of a
    /// slot: `web.3`. The current task is the live one, otherwise the newest.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Ambiguous`].
    pub fn find_task(&self, reference: &str) -> Result<&Arc<Task>, Refusal> {
        let missing = || Refusal::not_found(ObjectKind::Task, reference);
        if let Some((service, slot)) = reference.rsplit_once('.') {
            let service = self.find_service(service)?;
            let slot = slot.parse().map_err(|_| missing())?;
            return self.current_task(&service.id, slot).ok_or_else(missing);
        }
        let (prefix, number) = reference.rsplit_once('-').ok_or_else(missing)?;
        let (least, greatest) = id_range(prefix).ok_or_else(missing)?;
        let number: u64 = number.parse().map_err(|_| missing())?;
        let services = self.services.range(ServiceId(least)..=ServiceId(greatest));
        let tasks = services.filter_map(|(id, _)| self.tasks.get(&TaskId { service: *id, number }));
        find_unique(ObjectKind::Task, reference, Some(tasks), |task| task.id.to_string())
    }

    /// The last task of the same slot before this one that ran and has ended.
    pub fn previous_task(&self, task: &Task) -> Option<&Arc<Task>> {
        let ran = |other: &Task| !other.is_live() && other.node.is_some() && other.observed.attempt > 0;
        let earlier = |other: &Task| other.slot == task.slot && other.id < task.id;
        self.unsettled_tasks_of(&task.id.service).rev().find(|other| earlier(other) && ran(other))
    }

    /// The live task of a slot, otherwise its newest.
    pub fn current_task(&self, service: &ServiceId, slot: u32) -> Option<&Arc<Task>> {
        self.live_task(service, slot)
            .or_else(|| self.unsettled_tasks_of(service).rev().find(|task| task.slot == slot))
    }
}

/// The first and the last id that begin with these digits.
fn id_range(prefix: &str) -> Option<(Id, Id)> {
    if prefix.is_empty() || prefix.len() > DIGITS {
        return None;
    }
    let least = format!("{prefix:0<DIGITS$}").parse().ok()?;
    // A value beyond 128 bits is greater than every id.
    let greatest = format!("{prefix:z<DIGITS$}").parse().unwrap_or(Id(u128::MAX));
    Some((least, greatest))
}

/// The only one of the matches.
fn find_unique<'a, T>(
    kind: ObjectKind,
    reference: &str,
    matches: Option<impl Iterator<Item = &'a T>>,
    id: impl Fn(&T) -> String,
) -> Result<&'a T, Refusal> {
    let matches: Vec<&T> = matches.into_iter().flatten().take(MAX_LISTED_MATCHES).collect();
    match matches[..] {
        [] => Err(Refusal::not_found(kind, reference)),
        [one] => Ok(one),
        _ => {
            let matches = matches.into_iter().map(id).collect();
            Err(Refusal::Ambiguous { kind, reference: reference.into(), matches })
        }
    }
}
