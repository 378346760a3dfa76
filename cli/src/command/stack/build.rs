//! Builds the images of services with docker or buildah, and imports them on the nodes that may run the services.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use warren_client::Client;
use warren_compose::stack::{StackBuild, StackObjects, StackService};
use warren_proto::v1;
use warren_types::{CanonicalImage, ImageReference};

use super::local_paths::meets_constraints;
use super::members::{StackMembers, service_name};
use crate::args::GlobalArgs;
use crate::command::image::{import::follow, pull::with_timeout};
use crate::failure::{CommandError, ExitKind, from_client};

/// The programs that build images; the first one that is installed is used.
const BUILDERS: [&str; 2] = ["docker", "buildah"];

/// The names of the images that are built.
pub fn images(objects: &StackObjects) -> impl Iterator<Item = &str> {
    let built = objects.services.iter().filter(|service| service.build.is_some());
    built.map(|service| tag(&service.spec.task.image)).collect::<BTreeSet<_>>().into_iter()
}

/// Gives services the images that were built for them before. Images that must be built first are errors, unless
/// `will_build` is set.
pub fn keep_built(
    objects: &mut StackObjects,
    existing: &StackMembers,
    will_build: bool,
    what: &str,
) -> Result<(), CommandError> {
    let by_name: BTreeMap<&str, &v1::Service> =
        existing.services.iter().map(|one| (service_name(one), one)).collect();
    let mut problems = Vec::new();
    for StackService { spec, build, .. } in &mut objects.services {
        let Some(build) = build else { continue };
        let found = by_name.get(spec.name.as_str()).and_then(|found| found.spec.as_ref()?.task.as_ref());
        let built = found.filter(|task| {
            let digest = task.image.strip_prefix(spec.task.image.as_str());
            digest.is_some_and(|digest| digest.starts_with('@'))
        });
        match built.and_then(|task| task.image.parse().ok()) {
            Some(image) => spec.task.image = image,
            None if will_build => {}
            None if build.has_image => eprintln!(
                "warning: {}",
                build.defined.problem(format!(
                    "is not built without --build: the image {} is used as it is",
                    spec.task.image
                ))
            ),
            None => problems.push(build.defined.problem(
                "the image is not built yet: give --build to build it here with docker or buildah, or build and push \
                 it, and give it with `image`",
            )),
        }
    }
    match problems.iter().map(ToString::to_string).collect::<Vec<_>>() {
        none if none.is_empty() => Ok(()),
        listed => Err(CommandError::new(ExitKind::Usage, what, listed.join("\n"), "correct what is listed")),
    }
}

/// Builds all images, imports them, and gives the services what was imported. `false` if there is nothing to build.
pub async fn run(
    global: &GlobalArgs,
    client: &Client,
    objects: &mut StackObjects,
    what: &str,
) -> Result<bool, CommandError> {
    let mut builds: BTreeMap<String, StackBuild> = BTreeMap::new();
    for StackService { spec, build, .. } in &objects.services {
        if let Some(build) = build {
            builds.entry(tag(&spec.task.image).to_owned()).or_insert_with(|| build.clone());
        }
    }
    if builds.is_empty() {
        return Ok(false);
    }
    let builder = Builder::find(what)?;
    let nodes = nodes(client, objects, what).await?;
    for (image, build) in &builds {
        builder.build(image, build, what).await?;
    }
    let images: Vec<&str> = builds.keys().map(String::as_str).collect();
    let mut archive = builder.archive(&images, what).await?;
    let Some(output) = archive.child.stdout.take() else {
        return Err(builder.failed(what, "has no output"));
    };
    let imported = with_timeout(what, global.timeout, async {
        let mut import = client.images().import(nodes, output).await?;
        follow(&mut import, "importing").await
    });
    let imported = imported.await;
    if imported.is_err() {
        // It may wait for somebody who reads the rest.
        let _ = archive.child.start_kill();
    }
    let ended = archive.child.wait().await;
    if imported.is_ok() || matches!(&ended, Ok(status) if status.code().is_some()) {
        builder.check(ended, "write the images to an archive", what)?;
    }
    let mut digests = BTreeMap::new();
    for row in imported? {
        let (name, digest) = row.image();
        digests.insert(name.to_owned(), digest.to_owned());
    }
    for StackService { spec, build, .. } in &mut objects.services {
        if build.is_none() {
            continue;
        }
        let name = tag(&spec.task.image);
        let canonical = name.parse::<ImageReference>().map(|image| CanonicalImage::of(&image)).ok();
        let found = digests.iter().find(|(other, digest)| {
            canonical.as_ref().is_some_and(|image| *name == ***other || image.matches(other, digest))
        });
        let pinned = found.and_then(|(_, digest)| format!("{name}@{digest}").parse().ok());
        spec.task.image = pinned
            .ok_or_else(|| builder.failed(what, &format!("wrote an archive without the image {name}")))?;
    }
    eprintln!("{} built and imported", images.join(", "));
    Ok(true)
}

/// The name of an image without the digest of an earlier build.
fn tag(image: &ImageReference) -> &str {
    image.as_str().split_once('@').map_or(image.as_str(), |(tag, _)| tag)
}

/// The nodes that may run services whose images are built. Nodes that are not ready get them with a later deployment.
async fn nodes(client: &Client, objects: &StackObjects, what: &str) -> Result<Vec<String>, CommandError> {
    let all = client.nodes().list().await.map_err(|error| from_client(what, error))?;
    let mut placements = objects.services.iter().filter(|service| service.build.is_some());
    let ready = all.iter().filter(|node| node.status() == v1::NodeStatus::Ready);
    let fitting = ready
        .filter(|node| placements.clone().any(|service| meets_constraints(node, &service.spec.placement)));
    let fitting: Vec<String> = fitting.map(|node| node.id.clone()).collect();
    if fitting.is_empty() {
        let first = placements.next().map(|service| service.spec.name.to_string()).unwrap_or_default();
        let why = format!("no node that is READY may run {first}, so no node can get its image");
        return Err(CommandError::new(ExitKind::Conflict, what, why, "see `warren node ls`"));
    }
    Ok(fitting)
}

/// docker or buildah.
struct Builder {
    name: &'static str,
    program: PathBuf,
}

/// A program that writes an archive of images to its output.
struct SavedImages {
    child: Child,
    /// What it reads.
    _directory: Option<tempfile::TempDir>,
}

impl Builder {
    fn find(what: &str) -> Result<Self, CommandError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let find = |name| {
            let mut places = std::env::split_paths(&path).map(|directory| directory.join(name));
            places.find(|place| place.is_file())
        };
        let found = BUILDERS.into_iter().find_map(|name| Some(Self { name, program: find(name)? }));
        found.ok_or_else(|| {
            let why = "neither docker nor buildah is installed here, one of which builds images";
            CommandError::new(
                ExitKind::Failed,
                what,
                why,
                "install one of them, or build and push the images",
            )
        })
    }

    fn failed(&self, what: &str, why: &str) -> CommandError {
        let why = format!("{} {why}", self.name);
        CommandError::new(ExitKind::Failed, what, why, "correct what it reports and try again")
    }

    /// A command whose messages go to stderr.
    fn command(&self, what: &str) -> Result<Command, CommandError> {
        let own = std::io::stderr().as_fd().try_clone_to_owned();
        let own = own.map_err(|why| self.failed(what, &format!("cannot be started: {why}")))?;
        let mut command = Command::new(&self.program);
        command.stdin(Stdio::null()).stdout(Stdio::from(own)).kill_on_drop(true);
        Ok(command)
    }

    fn check(&self, ended: std::io::Result<ExitStatus>, doing: &str, what: &str) -> Result<(), CommandError> {
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.failed(what, &format!("did not {doing}: {status}"))),
            Err(why) => Err(self.failed(what, &format!("cannot be started: {why}"))),
        }
    }

    async fn build(&self, image: &str, build: &StackBuild, what: &str) -> Result<(), CommandError> {
        let at = &build.defined;
        if !build.context.contains("://") && !Path::new(&build.context).is_dir() {
            let why = at.problem(format!("{} is not a directory", build.context)).to_string();
            return Err(CommandError::new(ExitKind::NotFound, what, why, "correct `context`"));
        }
        let mut command = self.command(what)?;
        command.arg("build");
        // docker reuses the layers of earlier builds in any case.
        command.args((self.name == "buildah").then_some("--layers")).args(&build.flags);
        command.arg(format!("--tag={image}"));
        if build.dockerfile.is_some() {
            command.arg("--file=-").stdin(Stdio::piped());
        }
        command.arg(&build.context);
        let ended = async {
            let mut child = command.spawn()?;
            if let (Some(text), Some(mut input)) = (&build.dockerfile, child.stdin.take()) {
                // A builder that has ended says why by itself.
                let _ = input.write_all(text.as_bytes()).await;
            }
            child.wait().await
        };
        self.check(ended.await, &format!("build {image}"), what)
            .map_err(|error| CommandError { why: at.problem(&error.why).to_string(), ..error })
    }

    /// All images as one archive, with each layer once.
    async fn archive(&self, images: &[&str], what: &str) -> Result<SavedImages, CommandError> {
        let (mut command, directory) = match self.name {
            "docker" => {
                let mut command = self.command(what)?;
                command.arg("save").args(images);
                (command, None)
            }
            _ => {
                let unwritten = |why| self.failed(what, &format!("has no directory for the images: {why}"));
                let directory = tempfile::tempdir().map_err(unwritten)?;
                let layout = directory.path().display().to_string();
                for image in images {
                    let mut push = self.command(what)?;
                    push.args(["push", "--quiet", image, &format!("oci:{layout}:{image}")]);
                    self.check(push.status().await, &format!("write {image}"), what)?;
                }
                let mut command = Command::new("tar");
                command.args(["--create", "--directory", &layout, "index.json", "oci-layout", "blobs"]);
                (command, Some(directory))
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let child = command.spawn().map_err(|why| self.failed(what, &format!("cannot be started: {why}")))?;
        Ok(SavedImages { child, _directory: directory })
    }
}
