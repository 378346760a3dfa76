//! Access to registries for nodes that pull: a token for the one repository where the registry has tokens, and the
//! password of the credential only where it has none, or is not reached. Tokens are kept in memory until shortly before
//! they expire.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message;
use tokio::time::Instant;
use tonic::Code;
use warren_proto::Problem;
use warren_proto::status::NO_REGISTRY_ACCESS;
use warren_proto::v1;
use warren_proto::v1::registry_access::Access;
use warren_registry::{
    GRANT_TIMEOUT, PullGrant, Reference, RegistryCredentials, RegistryError, ResolveNames,
};
use warren_types::{NodeId, SecretObjectId};
use zeroize::{Zeroize, Zeroizing};

/// How long an answer without a token is used again: a registry that does not answer must not delay every pull, and one
/// that denies the password must not be asked by every node.
const ANSWER_TTL: Duration = Duration::from_secs(30);
/// A token that is younger is not replaced, although a node says that the registry refused it.
const MIN_TOKEN_AGE: Duration = Duration::from_secs(10);
/// The last part of its lifetime in which a token is not given to another node; at most half of the lifetime.
const MAX_MARGIN: Duration = Duration::from_secs(60);
/// The most answers that are kept.
const MAX_ANSWERS: usize = 1024;

/// A credential with the image that is pulled by it.
pub struct PullCredential {
    /// Its id, and the number of its version.
    pub version: Version,
    /// User and password.
    pub credentials: RegistryCredentials,
    /// Whether nodes never get the password.
    pub is_token_only: bool,
    /// The image.
    pub reference: Reference,
}

/// The id of a credential, and the number of its version.
type Version = (SecretObjectId, u64);
/// A version of a credential, and a repository of its registry.
type Question = (Version, String);
type Answer = Result<PullGrant, RegistryError>;
/// Locked while the registry is asked, so that it is asked once.
type AnswerSlot = Arc<tokio::sync::Mutex<StoredAnswers>>;

struct StoredAnswer {
    answer: Answer,
    asked: Instant,
    until: Instant,
}

impl StoredAnswer {
    fn new(answer: Answer, now: Instant) -> Self {
        let ttl = match &answer {
            Ok(PullGrant::Token(token)) => {
                let lifetime = token.remaining();
                lifetime - (lifetime / 2).min(MAX_MARGIN)
            }
            _ => ANSWER_TTL,
        };
        Self { answer, asked: now, until: now + ttl }
    }

    fn is_usable(&self, now: Instant, is_renewal: bool) -> bool {
        // That nothing is needed is what a renewal contradicts, maybe for another image of the repository.
        let settles_renewal =
            now < self.asked + MIN_TOKEN_AGE && !matches!(self.answer, Ok(PullGrant::NotNeeded));
        now < self.until && (!is_renewal || settles_renewal)
    }
}

/// What is known of one repository.
#[derive(Default)]
struct StoredAnswers {
    token: Option<StoredAnswer>,
    /// An answer without a token. A failure that is newer than the token does not replace it.
    other: Option<StoredAnswer>,
}

impl StoredAnswers {
    fn usable(&self, now: Instant, is_renewal: bool) -> Option<&Answer> {
        let mut stored = [&self.token, &self.other].into_iter().flatten();
        stored.find(|stored| stored.is_usable(now, is_renewal)).map(|stored| &stored.answer)
    }

    fn record(&mut self, answer: Answer, now: Instant) {
        match &answer {
            // It is about the image, not about the repository.
            Err(RegistryError::UnknownImage { .. }) => return,
            Ok(PullGrant::NoToken(_)) | Err(_) => {}
            Ok(_) => *self = Self::default(),
        }
        let place = match answer {
            Ok(PullGrant::Token(_)) => &mut self.token,
            _ => &mut self.other,
        };
        *place = Some(StoredAnswer::new(answer, now));
    }
}

/// What is known of the registry of a credential, for all its repositories.
#[derive(Default)]
struct RegistryRecord {
    /// The number of the credential's version.
    number: u64,
    /// It has demanded a token for this version.
    has_tokens: bool,
    /// It, or its token service, was not reached.
    failure: Option<StoredAnswer>,
}

/// Requests access for nodes. Clones share the answers.
#[derive(Clone)]
pub struct RepositoryTokens {
    registries: Arc<dyn ResolveNames>,
    answers: Arc<Mutex<BTreeMap<Question, AnswerSlot>>>,
    records: Arc<Mutex<BTreeMap<SecretObjectId, RegistryRecord>>>,
}

impl RepositoryTokens {
    /// Asks these registries.
    pub fn new(registries: Arc<dyn ResolveNames>) -> Self {
        Self { registries, answers: Arc::default(), records: Arc::default() }
    }

    /// What `node` gets for pulls from the repository, as an encoded [`v1::RegistryAccess`]; `None` if the registry
    /// demands nothing. With `is_renewal` the registry has refused what the node got before.
    ///
    /// # Errors
    /// [`NO_REGISTRY_ACCESS`].
    pub async fn access(
        &self,
        node: NodeId,
        credential: &PullCredential,
        is_renewal: bool,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Problem> {
        let answer = self.answer(credential, is_renewal).await;
        let failure = answer.as_ref().err().map(ToString::to_string);
        let has_tokens = self.with_record(credential.version, |record| record.has_tokens);
        let access = access_by(answer, credential, is_renewal, has_tokens)?;
        if let Some(Access::Login(_)) = &access {
            let registry = credential.reference.domain();
            let reason = failure.unwrap_or_else(|| "it has no tokens".to_owned());
            tracing::info!(%node, registry, reason, "a node gets the password of a registry");
        }
        Ok(access.map(encode))
    }

    async fn answer(&self, credential: &PullCredential, is_renewal: bool) -> Answer {
        let PullCredential { version, credentials, reference, .. } = credential;
        let slot = self.slot((*version, reference.path().to_owned()));
        let mut stored = slot.lock().await;
        let now = Instant::now();
        if let Some(known) = stored.usable(now, is_renewal) {
            return known.clone();
        }
        if let Some(failure) = self.known_failure(*version, now) {
            return failure;
        }
        let answer = self.registries.pull_grant(reference, credentials.clone()).await;
        let now = Instant::now();
        let is_of_registry = is_of_registry(&answer);
        self.with_record(*version, |record| {
            record.has_tokens |= matches!(answer, Ok(PullGrant::Token(_) | PullGrant::NoToken(_)));
            record.failure = is_of_registry.then(|| StoredAnswer::new(answer.clone(), now));
        });
        if !is_of_registry {
            stored.record(answer.clone(), now);
        }
        answer
    }

    /// That the registry was not reached a moment ago. When that is old, one caller is to ask again, and the others get
    /// the old failure meanwhile: a registry that is silent must not hold all calls of a node.
    fn known_failure(&self, version: Version, now: Instant) -> Option<Answer> {
        self.with_record(version, |record| {
            let failure = record.failure.as_mut()?;
            if now < failure.until {
                return Some(failure.answer.clone());
            }
            failure.until = now + GRANT_TIMEOUT;
            None
        })
    }

    fn with_record<T>(&self, (id, number): Version, act: impl FnOnce(&mut RegistryRecord) -> T) -> T {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() >= MAX_ANSWERS && !records.contains_key(&id) {
            records.clear();
        }
        let record = records.entry(id).or_default();
        if record.number < number {
            *record = RegistryRecord { number, ..RegistryRecord::default() };
        }
        act(record)
    }

    /// The slot of the question. A new one takes the place of those that have no usable answer, or of all if they are
    /// too many.
    fn slot(&self, question: Question) -> AnswerSlot {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = answers.get(&question) {
            return Arc::clone(slot);
        }
        let now = Instant::now();
        let is_usable = |slot: &AnswerSlot| {
            let stored = slot.try_lock();
            stored.is_ok_and(|stored| stored.usable(now, false).is_some())
        };
        let is_waited_for = |slot: &AnswerSlot| Arc::strong_count(slot) > 1;
        answers.retain(|_, slot| is_waited_for(slot) || is_usable(slot));
        if answers.len() >= MAX_ANSWERS {
            answers.retain(|_, slot| is_waited_for(slot));
        }
        Arc::clone(answers.entry(question).or_default())
    }
}

/// Whether the answer is about the whole registry: it, or its token service, was not reached.
fn is_of_registry(answer: &Answer) -> bool {
    use RegistryError as E;
    let (Ok(PullGrant::NoToken(error)) | Err(error)) = answer else { return false };
    matches!(error, E::Unreachable { .. } | E::Stalled { .. } | E::Tls { .. })
}

/// Whether nothing is known of what the registry demands, because there is no whole answer of it.
fn is_unanswered(error: &RegistryError) -> bool {
    use RegistryError as E;
    matches!(
        error,
        E::Unreachable { .. } | E::Stalled { .. } | E::Tls { .. } | E::Broken { .. } | E::Forbidden { .. }
    )
}

/// What a node gets, by the answer of the registry; `None` if it needs nothing. `has_tokens`: the registry has demanded
/// a token before, so that a failure does not mean that it has none.
fn access_by(
    answer: Answer,
    credential: &PullCredential,
    is_renewal: bool,
    has_tokens: bool,
) -> Result<Option<Access>, Problem> {
    let PullCredential { credentials, is_token_only, reference, .. } = credential;
    let is_token_only = *is_token_only;
    let (user, registry) = (credentials.user.clone(), reference.domain());
    let refusal = |code: Code, message: String| Err(Problem::new(code, NO_REGISTRY_ACCESS, message));
    let may_have_password = match &answer {
        Ok(PullGrant::PasswordOnly) => !is_token_only,
        Err(error) => !is_token_only && !has_tokens && is_unanswered(error),
        Ok(_) => false,
    };
    let error = match answer {
        Ok(PullGrant::Token(token)) => {
            return Ok(Some(Access::Token(v1::RepositoryToken {
                registry: registry.to_owned(),
                repository: reference.path().to_owned(),
                user,
                token: token.text().to_owned(),
                valid_for_ms: u64::try_from(token.remaining().as_millis()).unwrap_or(u64::MAX),
            })));
        }
        _ if may_have_password => {
            let password = credentials.password.clone();
            return Ok(Some(Access::Login(v1::RegistryLogin { user, password })));
        }
        Ok(PullGrant::NotNeeded) | Err(RegistryError::UnknownImage { .. }) if !is_renewal => return Ok(None),
        Ok(PullGrant::NotNeeded) => {
            return refusal(
                Code::Unavailable,
                format!(
                    "registry {registry} gives {reference} to managers without credentials, and refuses it to this \
                     node; let both reach it in the same way"
                ),
            );
        }
        Ok(PullGrant::PasswordOnly) => {
            return refusal(
                Code::FailedPrecondition,
                format!(
                    "registry {registry} has no tokens for single repositories, and its credential is for tokens \
                     only; `warren registry login {registry}` without --token-only lets nodes have the password"
                ),
            );
        }
        Ok(PullGrant::NoToken(error)) | Err(error) => error,
    };
    match &error {
        RegistryError::Denied { .. } | RegistryError::UnknownImage { .. } => {
            refusal(Code::FailedPrecondition, error.to_string())
        }
        _ => {
            let code = if error.is_transient() { Code::Unavailable } else { Code::FailedPrecondition };
            let why = match is_token_only {
                true => "its credential is for tokens only",
                false => {
                    "nodes get no password of a registry that answers managers or has demanded a token of them"
                }
            };
            let what_to_do = match is_token_only && !has_tokens && is_unanswered(&error) {
                true => format!(
                    "let managers reach the registry, or `warren registry login {registry}` without --token-only \
                     lets nodes have the password"
                ),
                false => "let managers reach the registry and its token service".to_owned(),
            };
            refusal(
                code,
                format!("managers get no token for registry {registry}, and {why}: {error}; {what_to_do}"),
            )
        }
    }
}

fn encode(access: Access) -> Zeroizing<Vec<u8>> {
    let mut message = v1::RegistryAccess { access: Some(access) };
    let bytes = Zeroizing::new(message.encode_to_vec());
    match &mut message.access {
        Some(Access::Login(login)) => login.password.zeroize(),
        Some(Access::Token(token)) => token.token.zeroize(),
        None => {}
    }
    bytes
}

#[cfg(test)]
mod tests;
