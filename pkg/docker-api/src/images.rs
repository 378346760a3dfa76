//! `/images`: the images of all nodes that are READY, as one list.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream};
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyDataStream;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio_util::io::StreamReader;
use warren_client::{Client, Error, ImageImport, ImagePulls, PullOptions};
use warren_proto::v1;
use warren_proto::v1::import_progress::Event as Imported;
use warren_proto::v1::pull_progress::Event as Pulled;

use crate::docker_error::DockerError;
use crate::request::DockerRequest;
use crate::response::{self, Answer, BodyError, ok, time};

const FILTERS: [&str; 2] = ["dangling", "reference"];
/// The least number of digits of an id.
const MIN_ID: usize = 12;

/// An image of some nodes.
struct ClusterImage {
    names: Vec<String>,
    image: v1::ImageInfo,
    tasks: u32,
}

/// The images of the nodes that answer, by digest.
async fn read(client: &Client) -> Result<BTreeMap<String, ClusterImage>, Error> {
    let mut all: BTreeMap<String, ClusterImage> = BTreeMap::new();
    let nodes = match client.images().list(Vec::new()).await {
        Err(Error::Refused { problem }) if problem.reason == "NO_READY_NODE" => return Ok(all),
        nodes => nodes?,
    };
    for node in nodes {
        if !node.error.is_empty() {
            tracing::warn!(node = node.node, error = node.error, "a node does not list its images");
        }
        for image in node.images {
            let first = || ClusterImage { names: Vec::new(), image: image.clone(), tasks: 0 };
            let known = all.entry(image.digest.clone()).or_insert_with(first);
            known.tasks = known.tasks.saturating_add(image.tasks);
            if !known.names.contains(&image.reference) {
                known.names.push(image.reference);
            }
        }
    }
    Ok(all)
}

/// Docker leaves out its own registry and that part of a name.
pub fn familiar(reference: &str) -> &str {
    let hub = reference.strip_prefix("docker.io/").unwrap_or(reference);
    hub.strip_prefix("library/").filter(|_| hub != reference).unwrap_or(hub)
}

/// A name without its tag, and the tag. It is behind the last slash; a port is not.
pub fn split_tag(name: &str) -> (&str, Option<&str>) {
    let last = name.rfind('/').map_or(0, |at| at + 1);
    match name[last..].find(':') {
        Some(at) => (&name[..last + at], Some(&name[last + at + 1..])),
        None => (name, None),
    }
}

impl ClusterImage {
    /// Names with a tag, and those with the digest.
    fn tags_and_digests(&self) -> (Vec<String>, Vec<String>) {
        let mut tags = Vec::new();
        let mut digests = Vec::new();
        for name in &self.names {
            let (name, is_digest) = match name.split_once('@') {
                Some((name, _)) => (familiar(name), true),
                None => (familiar(name), false),
            };
            let digest = format!("{}@{}", split_tag(name).0, self.image.digest);
            if !is_digest {
                tags.push(name.to_owned());
            }
            if !digests.contains(&digest) {
                digests.push(digest);
            }
        }
        (tags, digests)
    }

    fn created(&self) -> u64 {
        self.image.created_at.unwrap_or(0)
    }

    /// As in lists.
    fn summary(&self) -> Value {
        let (tags, digests) = self.tags_and_digests();
        json!({
            "Id": self.image.digest, "ParentId": "", "RepoTags": tags, "RepoDigests": digests,
            "Created": self.created() / 1000, "Size": self.image.size_bytes, "SharedSize": -1,
            "VirtualSize": self.image.size_bytes, "Labels": null, "Containers": self.tasks,
        })
    }

    fn is_named(&self, reference: &str) -> bool {
        let (tags, digests) = self.tags_and_digests();
        let wanted = familiar(reference);
        let is_digest = |text: &str| self.image.digest.starts_with(text);
        tags.iter().any(|tag| *tag == wanted || *tag == format!("{wanted}:latest"))
            || digests.iter().any(|digest| digest == wanted)
            || (wanted.len() >= MIN_ID && (is_digest(wanted) || is_digest(&format!("sha256:{wanted}"))))
    }
}

/// `GET /images/json`.
pub async fn list(client: &Client, request: &DockerRequest) -> Answer {
    let filters = request.filters(&FILTERS)?;
    if filters.values("reference").into_iter().flatten().any(|text| text.contains(['*', '?', '['])) {
        return Err(DockerError::invalid("reference: patterns are not served; give NAME or NAME:TAG"));
    }
    let mut shown = Vec::new();
    for image in read(client).await?.values() {
        let (tags, _) = image.tags_and_digests();
        let is_dangling = tags.is_empty();
        let matches = |pattern: &str| {
            let name = |tag: &String| tag.rsplit_once(':').map_or(tag.clone(), |(name, _)| name.to_owned());
            tags.iter().any(|tag| tag == pattern || name(tag) == pattern)
        };
        let is_accepted = filters.any("dangling", |wanted| matches!(wanted, "true" | "1") == is_dangling)
            && filters.any("reference", matches);
        if is_accepted {
            shown.push((image.created(), image.summary()));
        }
    }
    shown.sort_by_key(|(created, _)| std::cmp::Reverse(*created));
    ok(&shown.into_iter().map(|(_, one)| one).collect::<Vec<_>>())
}

/// All images, and the sum of their sizes in bytes, which counts layers of several images several times.
pub async fn all(client: &Client) -> Result<(Vec<Value>, u64), Error> {
    let images = read(client).await?;
    let size = images.values().map(|image| image.image.size_bytes).sum();
    Ok((images.values().map(ClusterImage::summary).collect(), size))
}

/// `GET /images/NAME/json`.
pub async fn inspect(client: &Client, name: &str) -> Answer {
    let missing = || DockerError::not_found(format!("No such image: {name}"));
    let images = read(client).await?;
    let image = images.into_values().find(|image| image.is_named(name)).ok_or_else(missing)?;
    let (tags, digests) = image.tags_and_digests();
    ok(&json!({
        "Id": image.image.digest, "RepoTags": tags, "RepoDigests": digests, "Parent": "", "Comment": "",
        "Created": time(image.created()), "Size": image.image.size_bytes,
        "VirtualSize": image.image.size_bytes, "Os": "linux", "Metadata": {"LastTagTime": time(image.created())},
    }))
}

/// `POST /images/create`: pulls an image on all nodes that are READY.
pub async fn pull(client: &Client, request: &DockerRequest) -> Answer {
    if request.text("fromSrc").is_some() {
        return Err(DockerError::unsupported("fromSrc: images are not made of archives of files"));
    }
    if request.text("tag").is_none() && !request.text("fromImage").is_some_and(|image| image.contains('@')) {
        return Err(DockerError::invalid(
            "tag: it is missing; all tags of a repository are not pulled at once",
        ));
    }
    if request.text("platform").is_some() {
        return Err(DockerError::invalid("platform: each node pulls the image of its own platform"));
    }
    let image = request.text("fromImage").ok_or_else(|| DockerError::invalid("fromImage: it is missing"))?;
    let reference = match request.text("tag") {
        None => image.to_owned(),
        Some(digest) if digest.contains(':') => format!("{image}@{digest}"),
        Some(tag) => format!("{image}:{tag}"),
    };
    let options = PullOptions { reference: reference.clone(), nodes: Vec::new(), always: true };
    let pulls = client.images().pull(options).await?;
    let mut begin = vec![json!({"status": format!("Pulling {} on all nodes", familiar(&reference))})];
    if request.has_registry_auth {
        begin.push(json!({"status": "The logins of the cluster are used: `warren registry login`"}));
    }
    let progress =
        Progress { source: PullOrImport::Pull(pulls), names: BTreeSet::new(), failures: Vec::new() };
    Ok(response::stream("application/json", lines(begin, progress)))
}

/// `POST /images/load`: imports an archive on all nodes that are READY.
pub async fn load(client: &Client, request: &DockerRequest) -> Answer {
    let body = request.take_stream().ok_or_else(|| DockerError::invalid("the request has no body"))?;
    let archive = StreamReader::new(BodyDataStream::new(body).map_err(std::io::Error::other));
    let import = client.images().import(Vec::new(), archive).await?;
    let source = PullOrImport::Import(import);
    let progress = Progress { source, names: BTreeSet::new(), failures: Vec::new() };
    Ok(response::stream("application/json", lines(Vec::new(), progress)))
}

enum PullOrImport {
    Pull(ImagePulls),
    Import(ImageImport),
}

/// The progress of all nodes. Clients end at the first error, which would cancel the other nodes: so errors are told
/// once all of them have ended, like the names of loaded images, which clients read.
struct Progress {
    source: PullOrImport,
    names: BTreeSet<String>,
    failures: Vec<String>,
}

impl Progress {
    /// The next line; `None` at the end.
    async fn next(&mut self) -> Result<Option<Value>, Error> {
        loop {
            let (node, text) = match &mut self.source {
                PullOrImport::Pull(pulls) => match pulls.next().await? {
                    None => return Ok(None),
                    Some(v1::PullProgress { node, event }) => match event {
                        Some(Pulled::Progress(text)) => (node, Ok(text)),
                        Some(Pulled::Pulled(image)) => {
                            (node, Ok(format!("Pull complete, digest: {}", image.digest)))
                        }
                        Some(Pulled::Error(error)) => (node, Err(error)),
                        None => continue,
                    },
                },
                PullOrImport::Import(import) => match import.next().await? {
                    None => return Ok(None),
                    Some(v1::ImportProgress { node, event }) => match event {
                        Some(Imported::Imported(image)) => {
                            let name = familiar(&image.reference).to_owned();
                            let text = format!("Loaded {name}");
                            self.names.insert(name);
                            (node, Ok(text))
                        }
                        Some(Imported::Error(error)) => (node, Err(error)),
                        Some(Imported::ReceivedBytes(_) | Imported::Done(_)) | None => continue,
                    },
                },
            };
            let text = text.unwrap_or_else(|error| {
                self.failures.push(format!("node {node}: {error}"));
                format!("failed: {error}")
            });
            return Ok(Some(json!({"status": text, "id": node})));
        }
    }

    /// The lines after the end.
    fn summary(self, broken: Option<&Error>) -> Vec<Value> {
        let Self { names, mut failures, .. } = self;
        failures.extend(broken.map(ToString::to_string));
        let names = names.into_iter().map(|name| json!({"stream": format!("Loaded image: {name}\n")}));
        let failures = (!failures.is_empty()).then(|| {
            let message = failures.join("; ");
            json!({"errorDetail": {"message": message}, "error": message})
        });
        names.chain(failures).collect()
    }
}

/// `POST /images/prune`: removes the images that no task of their nodes uses.
pub async fn prune(client: &Client, request: &DockerRequest) -> Answer {
    let filters = request.filters(&["dangling"])?;
    if filters.values("dangling").is_none()
        || filters.any("dangling", |wanted| matches!(wanted, "true" | "1"))
    {
        let message = "images without a name are removed by the nodes themselves; `docker image prune --all` removes \
                       all that no task uses";
        return Err(DockerError::unsupported(message));
    }
    let mut deleted = Vec::new();
    let mut bytes = 0_u64;
    let nodes = client.images().prune(Vec::new(), Duration::ZERO).await?;
    if let Some(failed) = nodes.iter().find(|node| !node.error.is_empty()) {
        let message = format!("node {}: {}", failed.node, failed.error);
        return Err(DockerError::new(StatusCode::INTERNAL_SERVER_ERROR, message));
    }
    for image in nodes.into_iter().flat_map(|node| node.images) {
        deleted.push(json!({"Untagged": familiar(&image.reference)}));
        bytes = bytes.saturating_add(image.size_bytes);
    }
    ok(&json!({"ImagesDeleted": deleted, "SpaceReclaimed": bytes}))
}

/// `DELETE /images/NAME`: removes a name, or an image by its id with all its names, from all nodes that are READY.
pub async fn remove(client: &Client, name: &str, request: &DockerRequest) -> Answer {
    let images: Vec<ClusterImage> = read(client).await?.into_values().collect();
    let names = names_to_remove(&images, name, request.flag("force"))?;
    let is_named = |image: &ClusterImage| image.names.iter().any(|name| names.contains(name));
    if let Some(used) = images.iter().find(|image| image.tasks > 0 && is_named(image)) {
        let message = format!("conflict: image {name} is used by {} tasks", used.tasks);
        return Err(DockerError::new(StatusCode::CONFLICT, message));
    }
    let mut failures = Vec::new();
    let mut removed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in &names {
        for node in client.images().remove(name).await? {
            if !node.error.is_empty() {
                failures.push(format!("node {}: {}", node.node, node.error));
            }
            for image in node.images {
                removed.entry(image.digest).or_default().insert(image.reference);
            }
        }
    }
    if !failures.is_empty() {
        return Err(DockerError::new(StatusCode::CONFLICT, failures.join("; ")));
    }
    let untagged: BTreeSet<&String> = removed.values().flatten().collect();
    let untagged = untagged.into_iter().map(|name| json!({"Untagged": familiar(name)}));
    let is_gone = |image: &&ClusterImage| {
        removed
            .get(&image.image.digest)
            .is_some_and(|gone| image.names.iter().all(|name| gone.contains(name)))
    };
    let deleted = images.iter().filter(is_gone).map(|image| json!({"Deleted": image.image.digest}));
    ok(&untagged.chain(deleted).collect::<Vec<_>>())
}

/// The names that a name, or the id of one image, means. `force`: also those of several repositories.
fn names_to_remove(
    images: &[ClusterImage],
    wanted: &str,
    force: bool,
) -> Result<BTreeSet<String>, DockerError> {
    let missing = || DockerError::not_found(format!("No such image: {wanted}"));
    let name = familiar(wanted);
    let is_meant = |known: &&String| {
        let known = familiar(known);
        known == name || *known == format!("{name}:latest")
    };
    let named: BTreeSet<String> =
        images.iter().flat_map(|image| image.names.iter().filter(is_meant).cloned()).collect();
    if !named.is_empty() {
        return Ok(named);
    }
    let digits = name.strip_prefix("sha256:").unwrap_or(name);
    if digits.len() < MIN_ID || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(missing());
    }
    let has_id = |image: &&ClusterImage| {
        image.image.digest.strip_prefix("sha256:").is_some_and(|digest| digest.starts_with(digits))
    };
    let found: Vec<&ClusterImage> = images.iter().filter(has_id).collect();
    let [image] = found.as_slice() else {
        return Err(match found.is_empty() {
            true => missing(),
            false => {
                DockerError::invalid(format!("{wanted} is ambiguous: {} images have such ids", found.len()))
            }
        });
    };
    let repository = |name: &String| split_tag(name.split('@').next().unwrap_or(name)).0.to_owned();
    let repositories: BTreeSet<String> = image.names.iter().map(repository).collect();
    if repositories.len() > 1 && !force {
        let message =
            format!("conflict: image {wanted} has names in several repositories: use force, or a name");
        return Err(DockerError::new(StatusCode::CONFLICT, message));
    }
    Ok(image.names.iter().cloned().collect())
}

/// `GET /distribution/NAME/json`: what the name stands for in its registry, asked by a manager. Clients would make the
/// platforms of the image a constraint of the service; here each node pulls the image for its own platform.
pub async fn resolve(client: &Client, name: &str) -> Answer {
    let v1::ResolvedImage { reference: _, digest, media_type, size_bytes } =
        client.images().resolve(name).await?;
    let descriptor = json!({"mediaType": media_type, "digest": digest, "size": size_bytes});
    ok(&json!({"Descriptor": descriptor, "Platforms": []}))
}

/// Progress as lines of JSON.
fn lines(begin: Vec<Value>, progress: Progress) -> impl Stream<Item = Result<Bytes, BodyError>> {
    let next = |progress: Option<Progress>| async {
        let mut progress = progress?;
        Some(match progress.next().await {
            Ok(Some(line)) => (vec![line], Some(progress)),
            Ok(None) => (progress.summary(None), None),
            Err(error) => (progress.summary(Some(&error)), None),
        })
    };
    let lines = stream::once(async { begin }).chain(stream::unfold(Some(progress), next));
    lines.flat_map(stream::iter).map(|line| Ok(Bytes::from(line.to_string() + "\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(names: &[&str]) -> ClusterImage {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        let digest = format!("sha256:{}", "ab".repeat(32));
        ClusterImage { names, image: v1::ImageInfo { digest, ..Default::default() }, tasks: 0 }
    }

    #[test]
    fn names_and_ids_of_one_image_are_removed() {
        let of = |names: &[&str], digit: &str| {
            let mut one = image(names);
            one.image.digest = format!("sha256:{}", digit.repeat(64));
            one
        };
        let images = [
            of(&["docker.io/library/nginx:1.27", "docker.io/library/nginx:latest"], "a"),
            of(&["docker.io/library/nginx:1.27", "docker.io/team/app:2"], "b"),
        ];
        let names = |wanted: &str, force| {
            names_to_remove(&images, wanted, force).map(|names| names.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(names("nginx", false).unwrap(), ["docker.io/library/nginx:latest"]);
        assert_eq!(names("nginx:1.27", false).unwrap(), ["docker.io/library/nginx:1.27"]);
        assert_eq!(names("aaaaaaaaaaaa", false).unwrap().len(), 2);
        let id = format!("sha256:{}", "b".repeat(64));
        let status = |wanted: &str| names(wanted, false).unwrap_err().status;
        assert_eq!(
            (status(&id), status("sha256:bbbbb"), status("other")),
            (StatusCode::CONFLICT, StatusCode::NOT_FOUND, StatusCode::NOT_FOUND,)
        );
        assert_eq!(names(&id, true).unwrap().len(), 2);
        let same = [of(&["docker.io/library/a:1"], "c"), of(&["docker.io/library/b:1"], "c")];
        assert_eq!(names_to_remove(&same, "cccccccccccc", true).unwrap_err().status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn names_are_those_of_docker() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let hub = image(&["docker.io/library/nginx:1.27", "docker.io/team/app:2"]);
        let expected = (
            vec!["nginx:1.27".to_owned(), "team/app:2".to_owned()],
            vec![format!("nginx@{digest}"), format!("team/app@{digest}")],
        );
        assert_eq!(hub.tags_and_digests(), expected);
        let private = image(&["10.0.0.1:5000/app:latest", &format!("10.0.0.1:5000/app@{digest}")]);
        let (tags, digests) = private.tags_and_digests();
        assert_eq!((tags.as_slice(), digests.len()), (&["10.0.0.1:5000/app:latest".to_owned()][..], 1));
        for name in ["nginx:1.27", "docker.io/library/nginx:1.27", "abababababab", &digest] {
            assert!(hub.is_named(name), "{name}");
        }
        assert!(private.is_named("10.0.0.1:5000/app") && !hub.is_named("nginx") && !hub.is_named("ab"));
    }
}
