//! How the images of services are built.

use std::collections::BTreeMap;
use std::path::Path;

use super::StackService;
use super::fields::{Fields, Report};
use crate::problem::ValuePosition;

/// How an image is built, in the words of `docker build`, which those of `buildah build` include.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackBuild {
    /// Where it is defined.
    pub defined: ValuePosition,
    /// A directory or an address.
    pub context: String,
    /// The text of the Dockerfile, if it is in the Compose file.
    pub dockerfile: Option<String>,
    /// `--file`, `--target` and so on, each with its value.
    pub flags: Vec<String>,
    /// The service has the name of an image, which may exist already.
    pub has_image: bool,
}

/// The build of a service, if it has one.
pub(super) fn build(service: &Fields<'_>) -> Option<StackBuild> {
    let build = service.sub("build")?;
    let context = build.text("context").map(str::to_owned);
    let inline = build.text("dockerfile_inline").map(str::to_owned);
    let Some(context) = context else {
        build.fail("has no directory; give `context`");
        return None;
    };
    let mut flags = Vec::new();
    let mut flag = |name: &str, value: &str| flags.push(format!("--{name}={value}"));
    match (build.text("dockerfile"), &inline) {
        (Some(_), Some(_)) => build.fail_at("dockerfile_inline", "leave out `dockerfile`, or this"),
        // The builder looks for the file of an address itself.
        (Some(file), None) if context.contains("://") => flag("file", file),
        (Some(file), None) => flag("file", &Path::new(&context).join(file).to_string_lossy()),
        (None, _) => {}
    }
    // Without a value, the builder takes that of the environment.
    let pair = |(name, value): (&str, Fields<'_>)| match value.node.is_null() {
        true => name.to_owned(),
        false => format!("{name}={}", value.node.as_text().unwrap_or_default()),
    };
    build.entries("args").into_iter().for_each(|one| flag("build-arg", &pair(one)));
    build.entries("labels").into_iter().for_each(|one| flag("label", &pair(one)));
    for (key, name) in [("target", "target"), ("network", "network"), ("shm_size", "shm-size")] {
        build.text(key).into_iter().for_each(|value| flag(name, value));
    }
    for (key, name) in [("no_cache", "no-cache"), ("pull", "pull")] {
        build.flag(key).into_iter().for_each(|value| flag(name, &value.to_string()));
    }
    for (key, name) in [("cache_from", "cache-from"), ("cache_to", "cache-to")] {
        build.texts(key).into_iter().flatten().for_each(|value| flag(name, &value));
    }
    for (host, addresses) in build.entries("extra_hosts") {
        for address in addresses.node.items().iter().filter_map(|address| address.as_text()) {
            flag("add-host", &format!("{host}:{address}"));
        }
    }
    for (name, limit) in build.entries("ulimits") {
        let [soft, hard] = ["soft", "hard"].map(|key| limit.text(key).unwrap_or("-1"));
        flag("ulimit", &format!("{name}={soft}:{hard}"));
    }
    let platforms = build.texts("platforms").unwrap_or_default();
    if platforms.len() > 1 {
        build.fail_at("platforms", "nodes get one platform of an image; give one");
    }
    let platform = platforms.first().map(String::as_str).or_else(|| service.text("platform"));
    platform.into_iter().for_each(|platform| flag("platform", platform));
    let has_image = service.text("image").is_some();
    Some(StackBuild { defined: build.position(), context, dockerfile: inline, flags, has_image })
}

/// Services whose image has one name build it in one way.
pub(super) fn check_names(services: &[StackService], report: &Report) {
    let mut known: BTreeMap<&str, &StackBuild> = BTreeMap::new();
    for service in services {
        let Some(build) = &service.build else { continue };
        let first = known.entry(service.spec.task.image.as_str()).or_insert(build);
        if (&first.context, &first.dockerfile, &first.flags)
            != (&build.context, &build.dockerfile, &build.flags)
        {
            let message = format!(
                "builds the image {} in another way than {} ({}); give one of them another name",
                service.spec.task.image, first.defined.path, first.defined.at
            );
            report.problems.borrow_mut().push(build.defined.problem(message));
        }
    }
}
