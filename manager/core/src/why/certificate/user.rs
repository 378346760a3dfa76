//! Why certificates of users are accepted or refused: by their keys, which the state has.

use warren_types::{ADMINISTRATOR, CaPhase, PublicKeyHash, RevokedKey, Timestamp, User};

use super::holder::shown_key;
use crate::why::{Cause, Inquiry, MAX_LISTED, count};

/// What managers know of the certificates for a key.
const LIFETIME: &str = "its certificates are valid for 24 hours, or as long as `warren context export --ttl` said; the \
                        CLI renews them with the key, and managers do not record which they issued";

impl Inquiry<'_> {
    /// A user with its keys.
    pub(super) fn user_certificates(&self, user: &User) -> Cause {
        let name = &user.name;
        if let Some(end) = user.expires_at.filter(|end| *end <= self.now) {
            let sentence = format!("user {name} has expired, so that its keys are refused");
            return Cause::problem("user-expired", sentence)
                .since(end)
                .evidence("none of its certificates is valid for longer than the user")
                .action(format!(
                    "remove it with `warren user rm {name}`, and create it again: `warren user create {name} --role \
                     {}`",
                    user.role
                ));
        }
        let revoked = self.state.revoked_keys().filter(|(_, revoked)| revoked.holder == name.as_str());
        let mut revoked: Vec<(&PublicKeyHash, &RevokedKey)> = revoked.collect();
        revoked.sort_by_key(|(_, revoked)| std::cmp::Reverse(revoked.revoked_at));
        let number = u64::try_from(user.keys.len()).unwrap_or(u64::MAX);
        let cause = match user.keys.is_empty() {
            true => self.without_key(user),
            false => Cause::ok("keys-listed", format!("user {name} has {}", count(number, "listed key")))
                .evidence(LIFETIME)
                .evidence(user_end(user)),
        };
        let unlisted = user.keys.len().saturating_sub(MAX_LISTED);
        let unlisted = unlisted + revoked.len().saturating_sub(MAX_LISTED);
        let more = match u64::try_from(unlisted).unwrap_or(u64::MAX) {
            0 => String::new(),
            more => format!("`warren user keys --filter user={name}` shows {} more", count(more, "key")),
        };
        let listed =
            user.keys.iter().take(MAX_LISTED).map(|(key, at)| self.listed_key(key, name.as_str(), *at));
        let revoked = revoked.into_iter().take(MAX_LISTED).map(|(key, revoked)| {
            let sentence = format!("key {} of {name} is revoked, and refused for good", shown_key(key));
            Cause::ok("key-revoked", sentence).since(revoked.revoked_at).evidence(until(revoked))
        });
        cause.evidence(more).because(listed).because(revoked).with_worst_severity()
    }

    fn without_key(&self, user: &User) -> Cause {
        let name = &user.name;
        let unused = user.login.as_ref().filter(|login| login.used_by.is_none());
        match unused.map(|login| login.expires_at) {
            Some(end) if end > self.now => Cause::waiting(
                "not-logged-in",
                format!("user {name} has not logged in"),
            )
            .evidence(format!("its login token is valid until {end}"))
            .action(
                "log in with `warren login MANAGER:8080` on the user's machine, which asks for the token",
            ),
            ended => {
                let token = match ended {
                    Some(end) => format!("its login token expired at {end}, unused"),
                    None => "it has no login token that can be used".to_owned(),
                };
                let sentence =
                    format!("user {name} has no listed key, so that all its certificates are refused");
                Cause::problem("no-listed-key", sentence).evidence(token).action(format!(
                    "make a token with `warren user token {name}`, and log in with it on the user's machine: \
                     `warren login MANAGER:8080`"
                ))
            }
        }
    }

    /// What is desired of a key, and what is; `None` if nobody has or had it.
    pub(super) fn key(&self, key: &PublicKeyHash) -> Option<(String, Cause)> {
        if let Some(revoked) = self.state.revoked_key(key) {
            return Some(("certificates for it are refused".to_owned(), self.revoked_key(key, revoked)));
        }
        let cause = match self.state.user_by_key(key) {
            Some(user) if user.is_expired(self.now) => self.user_certificates(user),
            Some(user) => {
                let listed_at = *user.keys.get(key)?;
                let cause = self.listed_key(key, user.name.as_str(), listed_at);
                cause.evidence(LIFETIME).evidence(user_end(user))
            }
            None => {
                let member =
                    self.state.members().find(|member| member.administrator_key.as_ref() == Some(key))?;
                let whose = format!("the administrator of {}", member.name);
                let sentence = format!("key {} of {whose} is listed", shown_key(key));
                let cause = Cause::ok("key-listed", sentence)
                    .evidence("its manager lists it, and writes its certificate into contexts of its machine")
                    .evidence(LIFETIME);
                cause
                    .because(self.replaced_authority(&whose, self.trusts_earlier_authority(key)))
                    .with_worst_severity()
            }
        };
        Some(("certificates for it are accepted".to_owned(), cause))
    }

    fn listed_key(&self, key: &PublicKeyHash, user: &str, listed_at: Timestamp) -> Cause {
        let shown = shown_key(key);
        let (who, is_missing) = (format!("the machine with key {shown}"), self.trusts_earlier_authority(key));
        Cause::ok("key-listed", format!("key {shown} of {user} is listed"))
            .since(listed_at)
            .because(self.replaced_authority(&who, is_missing))
            .with_worst_severity()
    }

    fn trusts_earlier_authority(&self, key: &PublicKeyHash) -> bool {
        self.state
            .ca_rotation()
            .is_some_and(|rotation| rotation.phase == CaPhase::Managers || rotation.keys.contains(key))
    }

    fn revoked_key(&self, key: &PublicKeyHash, revoked: &RevokedKey) -> Cause {
        let holder = &revoked.holder;
        let sentence = format!(
            "key {} of {holder} is revoked: its certificates are refused in the TLS handshake, and it renews none",
            shown_key(key)
        );
        let user = self.state.users().find(|user| user.name.as_str() == holder);
        let (now, action) = match user {
            Some(user) => (
                format!("user {holder} exists; listed keys: {}", user.keys.len()),
                format!(
                    "if it is to log in again: `warren user token {holder}`, then `warren login MANAGER:8080` on its \
                     machine"
                ),
            ),
            None if holder == ADMINISTRATOR => (
                "it was that of the administrator of a manager's machine; a manager that is a member makes another key \
                 by itself"
                    .to_owned(),
                "on the machine of a manager, use the context that it wrote, or the socket; elsewhere log in as a user"
                    .to_owned(),
            ),
            None => (
                format!("there is no user {holder} any more"),
                format!("if it is to come back: `warren user create {holder} --role ROLE`"),
            ),
        };
        Cause::problem("key-revoked", sentence)
            .since(revoked.revoked_at)
            .evidence(now)
            .evidence(until(revoked))
            .action(action)
    }
}

fn user_end(user: &User) -> String {
    user.expires_at.map(|end| format!("the user and all its certificates end at {end}")).unwrap_or_default()
}

/// Whether a certificate for it may still be valid.
fn until(revoked: &RevokedKey) -> String {
    format!("it is listed as revoked until {}, when its last certificate has expired", revoked.ends_at())
}
