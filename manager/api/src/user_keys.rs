//! The keys of users and administrators: which are listed, which are revoked.

use std::collections::BTreeMap;

use tonic::{Code, Request, Response, Status};
use warren_core::state::ObjectKind;
use warren_core::{Command, KeyCommand, State};
use warren_proto::status::Problem;
use warren_proto::v1;
use warren_store::problem::status_of;
use warren_types::{ADMINISTRATOR, PublicKeyHash, Timestamp, Violation};

use super::Api;
use super::audited_call::AuditedCall;
use super::paging::Page;

/// The fewest digits of a key that name it.
const MIN_DIGITS: usize = 8;

/// All keys, except those whose revocation has ended. A revoked one is shown as such, whoever still lists it.
fn keys(state: &State, now: Timestamp) -> BTreeMap<PublicKeyHash, v1::UserKey> {
    let shown = |key: &PublicKeyHash, user: &str| v1::UserKey {
        key: key.to_string(),
        user: user.to_owned(),
        ..v1::UserKey::default()
    };
    let mut keys = BTreeMap::new();
    for user in state.users() {
        let logins = user
            .keys
            .iter()
            .map(|(key, at)| (*key, v1::UserKey { listed_at: Some(at.0), ..shown(key, user.name.as_str()) }));
        keys.extend(logins);
    }
    for member in state.members() {
        let manager = member.name.to_string();
        let administrator = |key| (key, v1::UserKey { manager, ..shown(&key, ADMINISTRATOR) });
        keys.extend(member.administrator_key.map(administrator));
    }
    let revoked = state.revoked_keys().map(|(key, revoked)| {
        let (revoked_at, ends_at) = (Some(revoked.revoked_at.0), Some(revoked.ends_at().0));
        (*key, v1::UserKey { revoked_at, ends_at, ..shown(key, &revoked.holder) })
    });
    keys.extend(revoked);
    keys.retain(|_, key| key.ends_at.is_none_or(|end| end > now.0));
    keys
}

/// The key that begins with these digits.
fn find_key(state: &State, digits: &str, now: Timestamp) -> Result<(PublicKeyHash, v1::UserKey), Status> {
    if digits.len() < MIN_DIGITS {
        let message = format!("has {} digits; give the first {MIN_DIGITS} or more", digits.len());
        return Err(status_of(Violation::new("key", message)));
    }
    let digits = digits.to_ascii_lowercase();
    let mut matching = keys(state, now).into_iter().filter(|(_, shown)| shown.key.starts_with(&digits));
    match (matching.next(), matching.next()) {
        (Some(found), None) => Ok(found),
        (None, _) => {
            let message = format!(
                "no user and no administrator has a key that begins with {digits:?}; `warren user keys` lists them"
            );
            Err(Problem::new(Code::NotFound, "KEY_NOT_FOUND", message).into())
        }
        (Some(_), Some(_)) => {
            let message = format!("more than one key begins with {digits:?}; give more digits");
            Err(Problem::new(Code::InvalidArgument, "AMBIGUOUS_KEY", message).into())
        }
    }
}

impl Api {
    pub(super) async fn list_user_keys(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListUserKeysResponse>, Status> {
        let page = Page::<PublicKeyHash>::parse(request.get_ref().page_size, &request.get_ref().page_token)?;
        let published = self.read(&request).await?;
        let later = keys(&published.state, self.clock.now()).into_iter();
        let later = later.filter(|(key, _)| page.after.is_none_or(|after| *key > after));
        let (keys, next_page_token) = page.cut(later, |(key, _)| *key);
        let keys = keys.into_iter().map(|(_, key)| key).collect();
        Ok(Response::new(v1::ListUserKeysResponse { keys, next_page_token }))
    }

    pub(super) async fn revoke_user_key(
        &self,
        request: Request<v1::RevokeKeyRequest>,
    ) -> Result<Response<v1::UserKey>, Status> {
        let caller = AuditedCall::of(&request);
        let published = self.read_latest().await?;
        let (key, shown) = find_key(&published.state, &request.get_ref().key, self.clock.now())?;
        caller.named(ObjectKind::User, &shown.user);
        caller.detail(&shown.key);
        self.propose(Command::Key(KeyCommand::Revoke { key, at: self.clock.now() }))
            .await
            .map_err(status_of)?;
        tracing::info!(%caller, user = %shown.user, key = %shown.key, "key revoked");
        find_key(&self.store.read().state, &shown.key, self.clock.now())
            .map(|(_, revoked)| Response::new(revoked))
    }
}
