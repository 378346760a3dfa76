//! Commands on secrets, configs and credentials.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::content::{KEPT_CONTENT_VERSIONS, MAX_CONTENT};
use warren_types::spec::validate_labels;
use warren_types::{Content, ContentId, ContentKind, ContentName, SealedContent, ServiceId, Violations};

use super::{Entry, revision};
use crate::state::index::bytes;
use crate::state::{Answer, Change, Kind, MAX_CONTENT_BYTES, MAX_CONTENTS, Refusal, State, digest};

/// What sealing may add to the bytes of a content.
const SEALING: usize = 256;

pub(super) fn create(
    state: &mut State,
    entry: &mut Entry,
    id: ContentId,
    (kind, name): (ContentKind, &ContentName),
    labels: &BTreeMap<String, String>,
    first: &SealedContent,
) -> Result<Answer, Refusal> {
    if let Some(known) = state.contents.get(&id) {
        return repeat(known, (kind, name), labels, first);
    }
    let mut wrong = Violations::default();
    validate_labels(labels, &mut wrong);
    wrong.into_result(()).map_err(Refusal::Invalid)?;
    has_size(first)?;
    if state.content_named(kind, name).is_some() {
        return Err(Refusal::AlreadyExists { kind: Kind::Content(kind), name: name.to_string() });
    }
    if state.contents.len() >= MAX_CONTENTS {
        return Err(Refusal::TooManyContents {
            found: u32::try_from(state.contents.len()).unwrap_or(u32::MAX),
        });
    }
    let content = Content {
        id,
        kind,
        name: name.clone(),
        version: entry.index,
        created_at: entry.now,
        updated_at: entry.now,
        labels: labels.clone(),
        versions: BTreeMap::from([(1, Arc::new(first.clone()))]),
    };
    has_room(state, None, &content)?;
    Ok(put(state, entry, content))
}

/// A create with the id of a content that is there. What was made of it since is another one's write.
fn repeat(
    known: &Arc<Content>,
    (kind, name): (ContentKind, &ContentName),
    labels: &BTreeMap<String, String>,
    first: &SealedContent,
) -> Result<Answer, Refusal> {
    let is_same = known.kind == kind && known.name == *name && known.labels == *labels;
    let has_first = |version: &Arc<SealedContent>| version.fingerprint == first.fingerprint;
    match known.versions.get(&1) {
        Some(version) if is_same && has_first(version) && known.number() == 1 => {
            Ok(Answer::Content(known.clone()))
        }
        version if is_same && known.number() > 1 && version.is_none_or(has_first) => {
            let (kind, name, found) = (Kind::Content(kind), name.to_string(), known.version);
            Err(Refusal::ChangedSinceCreated { kind, name, found })
        }
        _ => Err(Refusal::AlreadyExists { kind: Kind::Content(kind), name: name.to_string() }),
    }
}

pub(super) fn update(
    state: &mut State,
    entry: &mut Entry,
    id: ContentId,
    version: Option<u64>,
    next: &SealedContent,
) -> Result<Answer, Refusal> {
    let known = find(state, id)?;
    let current = known.versions.last_key_value();
    if current.is_some_and(|(_, current)| current.fingerprint == next.fingerprint) {
        return Ok(Answer::Content(known.clone()));
    }
    has_size(next)?;
    if let Some(wanted) = version.filter(|version| *version != known.version) {
        let (kind, name, found) = (Kind::Content(known.kind), known.name.to_string(), known.version);
        return Err(Refusal::VersionConflict { kind, name, wanted, found });
    }
    let mut content = Content::clone(known);
    let number = content.number().saturating_add(1);
    content.versions.insert(number, Arc::new(next.clone()));
    while content.versions.len() > KEPT_CONTENT_VERSIONS {
        content.versions.pop_first();
    }
    (content.version, content.updated_at) = (entry.index, entry.now);
    has_room(state, Some(known), &content)?;
    let answer = put(state, entry, content);
    let users: Vec<ServiceId> = state.content_users(&id).map(|service| service.id).collect();
    users.into_iter().try_for_each(|service| revision::follow(state, entry, service, id, number))?;
    Ok(answer)
}

pub(super) fn remove(state: &mut State, entry: &mut Entry, id: ContentId) -> Result<Answer, Refusal> {
    let known = find(state, id)?.clone();
    let mut by: Vec<String> = state.content_users(&id).map(|user| user.spec.name.to_string()).collect();
    if !by.is_empty() {
        by.sort_unstable();
        return Err(Refusal::ContentInUse { kind: known.kind, name: known.name.clone(), by });
    }
    state.index.remove_content(&known);
    state.sum.remove(digest::content(&known));
    state.contents.remove(&id);
    entry.changes.push(Change::Content(id));
    Ok(Answer::Content(known))
}

fn find(state: &State, id: ContentId) -> Result<&Arc<Content>, Refusal> {
    // What kind it was is not known any more; most are secrets.
    state.contents.get(&id).ok_or_else(|| Refusal::not_found(Kind::Content(ContentKind::Secret), id))
}

/// What it says of its size can be.
fn has_size(content: &SealedContent) -> Result<(), Refusal> {
    let size = content.size as usize;
    let mut wrong = Violations::default();
    if size > MAX_CONTENT {
        wrong.add("data", format!("{size} bytes are more than {MAX_CONTENT}"));
    }
    if content.sealed.len() > size.saturating_add(SEALING) {
        wrong.add("content.sealed", format!("{} bytes cannot be {size} bytes sealed", content.sealed.len()));
    }
    wrong.into_result(()).map_err(Refusal::Invalid)
}

/// All contents fit with this one in the place of `before`.
fn has_room(state: &State, before: Option<&Content>, after: &Content) -> Result<(), Refusal> {
    let others = state.index.content_bytes.saturating_sub(before.map_or(0, bytes));
    let wanted = others.saturating_add(bytes(after));
    if wanted > MAX_CONTENT_BYTES { Err(Refusal::ContentsTooLarge { wanted }) } else { Ok(()) }
}

fn put(state: &mut State, entry: &mut Entry, content: Content) -> Answer {
    let (id, content) = (content.id, Arc::new(content));
    state.sum.add(digest::content(&content));
    state.index.add_content(&content);
    if let Some(before) = state.contents.insert(id, content.clone()) {
        state.sum.remove(digest::content(&before));
        state.index.give_back_bytes(&before);
    }
    entry.changes.push(Change::Content(id));
    Answer::Content(content)
}
