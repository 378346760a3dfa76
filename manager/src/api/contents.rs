//! Secrets, configs and credentials of registries. Their bytes are sealed before anything else is done with them, and
//! opened again for those who may see them: the bytes of configs, and of a credential the user.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::{Code, Request, Response, Status};
use warren_core::{Command, State};
use warren_proto::convert::{content_data, content_kind, parse_field};
use warren_proto::status::Problem;
use warren_proto::v1::{self, contents_server};
use warren_types::content::validate_registry;
use warren_types::spec::validate_labels;
use warren_types::{Content, ContentId, ContentKind, ContentName, Login, Timestamp, Violations};

use super::Api;
use super::access::caller_of;
use super::paging::Page;
use super::problem::{status_of, unreadable};

/// What a create asks for, but for the bytes.
#[derive(Debug)]
struct Wish {
    id: ContentId,
    kind: ContentKind,
    name: ContentName,
    labels: BTreeMap<String, String>,
}

impl Wish {
    fn parse(request: &v1::CreateContentRequest) -> Result<Self, Violations> {
        let v1::CreateContentRequest { id, kind, name, labels, data } = request;
        let mut wrong = Violations::default();
        let id = parse_field("id", id).map_err(|inner| wrong.0.extend(inner.0)).ok();
        let kind = content_kind(*kind).map_err(|inner| wrong.nest("kind", inner)).ok();
        let name: Option<ContentName> =
            parse_field("name", name).map_err(|inner| wrong.0.extend(inner.0)).ok();
        if let (Some(ContentKind::Credential), Some(name)) = (kind, &name)
            && let Err(why) = validate_registry(name)
        {
            wrong.add("name", format!("{name} {why}"));
        }
        validate_labels(labels, &mut wrong);
        if let Err(violation) = content_data(kind, data) {
            wrong.0.push(violation);
        }
        let wish = || Some(Self { id: id?, kind: kind?, name: name?, labels: labels.clone() });
        let wish = wrong.into_result(wish())?;
        Ok(wish.expect("what is missing was named"))
    }
}

/// The kind that a request names.
fn kind_of(wire: i32) -> Result<ContentKind, Status> {
    content_kind(wire).map_err(|inner| {
        let mut wrong = Violations::default();
        wrong.nest("kind", inner);
        status_of(wrong)
    })
}

fn never_shown(kind: ContentKind) -> Status {
    let message = format!("a {kind} is never shown: tasks that use it see it, and nobody else");
    Problem::new(Code::PermissionDenied, "NEVER_SHOWN", message).into()
}

fn not_kept(content: &Content, number: u64) -> Status {
    let Content { kind, name, versions, .. } = content;
    let kept: Vec<String> = versions.keys().map(ToString::to_string).collect();
    let message = format!("{kind} {name} has no version {number}; kept are {}", kept.join(", "));
    Problem::new(Code::NotFound, "NO_VERSION", message).into()
}

impl Api {
    /// A content without its bytes, with the names of the services that use it.
    fn show_content(&self, state: &State, content: &Content) -> v1::Content {
        let mut services: Vec<String> =
            state.content_users(&content.id).map(|service| service.spec.name.to_string()).collect();
        services.sort_unstable();
        v1::Content { services, user: self.user_of(content).unwrap_or_default(), ..content.into() }
    }

    /// Of a credential: whose it is.
    fn user_of(&self, content: &Content) -> Option<String> {
        let (_, newest) =
            content.versions.last_key_value().filter(|_| content.kind == ContentKind::Credential)?;
        let opened = self.content_key.open(content.id, newest);
        // It is logged; what else there is of it is shown all the same.
        let opened = opened.map_err(|error| unreadable(content.id, &error)).ok()?;
        let login: Option<Login> = std::str::from_utf8(&opened).ok()?.parse().ok();
        login.map(|login| login.user)
    }

    /// Notes a write, and shows the content as that left it.
    fn written(&self, caller: &str, content: &Content, what: &str) -> Response<v1::Content> {
        let Content { id, kind, name, .. } = content;
        tracing::info!(%caller, content = %id, %name, number = content.number(), "{kind} {what}");
        Response::new(self.show_content(&self.store.read().state, content))
    }
}

#[tonic::async_trait]
impl contents_server::Contents for Api {
    async fn create(
        &self,
        request: Request<v1::CreateContentRequest>,
    ) -> Result<Response<v1::Content>, Status> {
        let caller = caller_of(&request);
        let Wish { id, kind, name, labels } = Wish::parse(request.get_ref()).map_err(status_of)?;
        let content = self.content_key.seal(id, &request.get_ref().data);
        let at: Timestamp = self.clock.now();
        let command = Command::CreateContent { id, kind, name, labels, content, at };
        let created: Arc<Content> = self.write(command).await?;
        Ok(self.written(&caller, &created, "created"))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateContentRequest>,
    ) -> Result<Response<v1::Content>, Status> {
        let caller = caller_of(&request);
        let v1::UpdateContentRequest { kind, reference, version, data } = request.get_ref();
        let kind = kind_of(*kind)?;
        content_data(Some(kind), data).map_err(status_of)?;
        let id = self.newest().await?.state.find_content(kind, reference).map_err(status_of)?.id;
        let content = self.content_key.seal(id, data);
        let command = Command::UpdateContent { id, version: *version, content, at: self.clock.now() };
        let updated: Arc<Content> = self.write(command).await?;
        Ok(self.written(&caller, &updated, "updated"))
    }

    async fn get(&self, request: Request<v1::ContentReference>) -> Result<Response<v1::Content>, Status> {
        let v1::ContentReference { kind, reference } = request.get_ref();
        let published = self.read(&request).await?;
        let content = published.state.find_content(kind_of(*kind)?, reference).map_err(status_of)?;
        Ok(Response::new(self.show_content(&published.state, content)))
    }

    async fn read(
        &self,
        request: Request<v1::ReadContentRequest>,
    ) -> Result<Response<v1::ContentBytes>, Status> {
        let v1::ReadContentRequest { kind, reference, number } = request.get_ref();
        let kind = kind_of(*kind)?;
        if kind != ContentKind::Config {
            return Err(never_shown(kind));
        }
        let published = self.read(&request).await?;
        let content = published.state.find_content(kind, reference).map_err(status_of)?;
        let number = number.unwrap_or_else(|| content.number());
        let sealed = content.versions.get(&number).ok_or_else(|| not_kept(content, number))?;
        let opened = self.content_key.open(content.id, sealed);
        let opened = opened.map_err(|error| unreadable(content.id, &error))?;
        Ok(Response::new(v1::ContentBytes { number, data: opened.to_vec().into() }))
    }

    async fn list(
        &self,
        request: Request<v1::ListContentsRequest>,
    ) -> Result<Response<v1::ListContentsResponse>, Status> {
        let v1::ListContentsRequest { kind, page_size, page_token } = request.get_ref();
        let kind = kind_of(*kind)?;
        let page = Page::<ContentName>::parse(*page_size, page_token)?;
        let published = self.read(&request).await?;
        let later = published.state.contents_after(kind, page.after.as_ref());
        let (contents, next_page_token) = page.cut(later, |content| content.name.clone());
        let contents = contents.iter().map(|content| self.show_content(&published.state, content)).collect();
        Ok(Response::new(v1::ListContentsResponse { contents, next_page_token }))
    }

    async fn remove(&self, request: Request<v1::ContentReference>) -> Result<Response<v1::Content>, Status> {
        let caller = caller_of(&request);
        let v1::ContentReference { kind, reference } = request.get_ref();
        let published = self.newest().await?;
        let id = published.state.find_content(kind_of(*kind)?, reference).map_err(status_of)?.id;
        let removed: Arc<Content> = self.write(Command::RemoveContent { id, at: self.clock.now() }).await?;
        Ok(self.written(&caller, &removed, "removed"))
    }
}

#[cfg(test)]
mod tests {
    use warren_types::Violation;

    use super::*;

    fn good() -> v1::CreateContentRequest {
        v1::CreateContentRequest {
            id: "0".repeat(25),
            kind: v1::ContentKind::Secret.into(),
            name: "db".into(),
            labels: BTreeMap::new(),
            data: vec![7; 32].into(),
        }
    }

    #[track_caller]
    fn refused(request: v1::CreateContentRequest, wanted: &[&str]) -> Vec<Violation> {
        let wrong = Wish::parse(&request).unwrap_err().0;
        assert_eq!(wrong.iter().map(|violation| violation.path.as_str()).collect::<Vec<_>>(), wanted);
        wrong
    }

    #[test]
    fn every_field_that_is_wrong_is_named() {
        assert_eq!(Wish::parse(&good()).unwrap().kind, ContentKind::Secret);
        let labels = BTreeMap::from([("no key".to_owned(), String::new())]);
        let wrong = v1::CreateContentRequest {
            id: "!".into(),
            kind: 9,
            name: "a b".into(),
            labels,
            data: Default::default(),
        };
        refused(wrong, &["id", "kind", "name", "labels[\"no key\"]", "data"]);
        let large = v1::CreateContentRequest { data: vec![0; (1 << 20) + 1].into(), ..good() };
        let wrong = refused(large, &["data"]);
        assert!(wrong[0].message.contains("has 1048577 bytes"), "{wrong:?}");
        let most = v1::CreateContentRequest { data: vec![0; 1 << 20].into(), ..good() };
        assert!(Wish::parse(&most).is_ok());
    }

    #[test]
    fn credentials_are_logins_of_registries() {
        let login = |name: &str, data: &'static [u8]| v1::CreateContentRequest {
            kind: v1::ContentKind::Credential.into(),
            name: name.into(),
            data: data.into(),
            ..good()
        };
        assert!(Wish::parse(&login("registry.lan:5000", b"ann\nhunter2")).is_ok());
        let wrong = refused(login("Registry", b"hunter2"), &["name", "data"]);
        assert!(!format!("{wrong:?}").contains("hunter2"), "{wrong:?}");
    }
}
