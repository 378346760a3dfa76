//! Documents of several files to the objects that they describe.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use warren_compose::stack::{
    SecretObjectSource, StackNetwork, StackObjects, StackSecretObject, StackService, StackVolume,
};
use warren_compose::yaml::{WorkBudget, YamlEntry, YamlMap, YamlNode, YamlValue, parse_documents};
use warren_compose::{ComposeProblem, SourcePosition, ValuePosition, similar};
use warren_types::base64::decode_base64;
use warren_types::spec::{validate_labels, validate_taints};
use warren_types::{
    NodeName, SecretObjectKind, SecretObjectName, ServiceName, ServiceSpec, Violations, Volume,
};

use crate::format::{
    ADMISSION_POLICY, API_VERSION, DocumentKind, METADATA_FIELDS, Metadata, NetworkFields, NodeFields,
    SecretObjectFields, VolumeFields,
};
use crate::locate::{ROOT, problem, problems};
use crate::reader::read;

/// The keys of a document.
const KEYS: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

/// The text of a file.
#[derive(Clone, Copy)]
pub struct SourceText<'a> {
    /// As the user named it.
    pub name: &'a str,
    /// Its documents.
    pub text: &'a str,
}

/// The objects that documents describe.
#[derive(Debug)]
pub struct Documents {
    /// Networks, volumes, secrets, configs and services, each in the order of the files.
    pub objects: StackObjects,
    /// The data of secrets and configs, by kind and name; none for [`SecretObjectSource::Existing`].
    pub data: BTreeMap<(DocumentKind, SecretObjectName), DataSource>,
    /// Nodes to change.
    pub nodes: Vec<NodeDocument>,
    /// Every object, in the order of the files.
    pub names: Vec<NamedObject>,
}

/// An object that a document names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedObject {
    /// What it is.
    pub kind: DocumentKind,
    /// Its name in the cluster.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Where it is named.
    pub defined: ValuePosition,
}

/// A node to change. What is `None` stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDocument {
    /// Where it is named.
    pub defined: ValuePosition,
    /// A node of the cluster.
    pub name: NodeName,
    /// All labels of users.
    pub labels: Option<BTreeMap<String, String>>,
    /// Taints and availability.
    pub fields: NodeFields,
}

/// Where the data of a secret or config is. `Debug` redacts it.
#[derive(Clone, PartialEq, Eq)]
pub enum DataSource {
    /// In the document.
    Bytes(Vec<u8>),
    /// In a file, relative to that of the document, which is `defined.at.file`.
    File(String),
}

impl fmt::Debug for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::File(path) => write!(f, "file {path:?}"),
        }
    }
}

impl Documents {
    /// Reads all documents of the files.
    ///
    /// # Errors
    /// Every document that is wrong, and every name that two documents have.
    pub fn read(files: &[SourceText<'_>]) -> Result<Self, Vec<ComposeProblem>> {
        let mut found = Self {
            objects: StackObjects {
                networks: Vec::new(),
                volumes: Vec::new(),
                secret_objects: Vec::new(),
                services: Vec::new(),
                external: Vec::new(),
                warnings: Vec::new(),
            },
            data: BTreeMap::new(),
            nodes: Vec::new(),
            names: Vec::new(),
        };
        let (mut wrong, mut budget) = (Vec::new(), WorkBudget::default());
        for SourceText { name, text } in files {
            match parse_documents(name, text, &mut budget) {
                Ok(roots) => {
                    roots.iter().for_each(|root| wrong.extend(found.add(root).err().unwrap_or_default()))
                }
                Err(problem) => wrong.push(with_hint_about_tabs(problem, text)),
            }
        }
        found.find_duplicates(&mut wrong);
        if wrong.is_empty() { Ok(found) } else { Err(wrong) }
    }

    fn add(&mut self, root: &YamlNode) -> Result<(), Vec<ComposeProblem>> {
        if root.is_null() {
            return Ok(());
        }
        // What `-o json` prints of several objects.
        if let YamlValue::List(items) = &root.value {
            let wrong: Vec<ComposeProblem> =
                items.iter().flat_map(|item| self.add(item).err().unwrap_or_default()).collect();
            return if wrong.is_empty() { Ok(()) } else { Err(wrong) };
        }
        let kind = kind_of(root).map_err(|problem| vec![problem])?;
        match kind {
            DocumentKind::Node => self.node(root),
            DocumentKind::Network => self.network(root),
            DocumentKind::Volume => self.volume(root),
            DocumentKind::Secret => self.secret_object(root, SecretObjectKind::Secret),
            DocumentKind::Config => self.secret_object(root, SecretObjectKind::Config),
            DocumentKind::Service => self.service(root),
        }
    }

    fn record(
        &mut self,
        kind: DocumentKind,
        name: &str,
        labels: &BTreeMap<String, String>,
        at: &ValuePosition,
    ) {
        let (name, labels, defined) = (name.to_owned(), labels.clone(), at.clone());
        self.names.push(NamedObject { kind, name, labels, defined });
    }

    fn node(&mut self, root: &YamlNode) -> Result<(), Vec<ComposeProblem>> {
        let (Metadata { name, labels }, defined) = metadata::<NodeName>(root)?;
        let fields: NodeFields = spec(root)?;
        let mut wrong = Violations::default();
        validate_taints("spec.taints", fields.taints.iter().flatten(), &mut wrong);
        checked(root, wrong)?;
        self.record(DocumentKind::Node, name.as_str(), &BTreeMap::new(), &defined);
        self.nodes.push(NodeDocument { defined, name, labels, fields });
        Ok(())
    }

    fn network(&mut self, root: &YamlNode) -> Result<(), Vec<ComposeProblem>> {
        let (Metadata { name, labels }, defined) = metadata(root)?;
        let (NetworkFields { internal }, labels) = (spec(root)?, labels.unwrap_or_default());
        let network = StackNetwork { defined, name, labels, internal };
        self.record(DocumentKind::Network, network.name.as_str(), &network.labels, &network.defined);
        self.objects.networks.push(network);
        Ok(())
    }

    fn volume(&mut self, root: &YamlNode) -> Result<(), Vec<ComposeProblem>> {
        let (Metadata { name, labels }, defined) = metadata(root)?;
        let (VolumeFields { driver, options, node }, labels) = (spec(root)?, labels.unwrap_or_default());
        let mut wrong = Violations::default();
        wrong.nest("spec", Volume::validate(driver, &options));
        checked(root, wrong)?;
        let volume = StackVolume { defined, name, labels, driver, options, node };
        self.record(DocumentKind::Volume, volume.name.as_str(), &volume.labels, &volume.defined);
        self.objects.volumes.push(volume);
        Ok(())
    }

    fn secret_object(&mut self, root: &YamlNode, kind: SecretObjectKind) -> Result<(), Vec<ComposeProblem>> {
        let (Metadata { name, labels }, defined) = metadata::<SecretObjectName>(root)?;
        let SecretObjectFields { data, string_data, file } = spec(root)?;
        let labels = labels.unwrap_or_default();
        let source = match (data, string_data, file) {
            (None, None, None) => None,
            (Some(base64), None, None) => match decode_base64(&base64) {
                Some(bytes) => Some(DataSource::Bytes(bytes)),
                None => {
                    return Err(vec![problem(root, "spec.data", "is not base64; give text as stringData")]);
                }
            },
            (None, Some(text), None) => Some(DataSource::Bytes(text.into_bytes())),
            (None, None, Some(path)) => Some(DataSource::File(path)),
            _ => return Err(vec![problem(root, "spec", "give only one of data, stringData and file")]),
        };
        let document_kind = DocumentKind::from(kind);
        self.record(document_kind, name.as_str(), &labels, &defined);
        let source = match source {
            Some(source) => {
                self.data.insert((document_kind, name.clone()), source);
                SecretObjectSource::Document
            }
            None => SecretObjectSource::Existing,
        };
        self.objects.secret_objects.push(StackSecretObject { defined, kind, name, labels, source });
        Ok(())
    }

    fn service(&mut self, root: &YamlNode) -> Result<(), Vec<ComposeProblem>> {
        let (_, defined) = metadata::<ServiceName>(root)?;
        let spec = service_spec(root)?;
        let ports = root.get("spec").and_then(|spec| spec.get("ports")).map_or(&[][..], YamlNode::items);
        let port = |(i, node): (usize, &YamlNode)| ValuePosition {
            at: node.at.clone(),
            path: format!("spec.ports[{i}]"),
        };
        let ports = ports.iter().enumerate().map(port).collect();
        self.record(DocumentKind::Service, spec.name.as_str(), &spec.labels, &defined);
        let (dependencies, local_paths) = (Vec::new(), Vec::new());
        let service = StackService { defined, spec, ports, dependencies, build: None, local_paths };
        self.objects.services.push(service);
        Ok(())
    }

    fn find_duplicates(&self, wrong: &mut Vec<ComposeProblem>) {
        let mut first: BTreeMap<(DocumentKind, &str), &SourcePosition> = BTreeMap::new();
        for NamedObject { kind, name, defined, .. } in &self.names {
            if let Some(earlier) = first.get(&(*kind, name.as_str())) {
                let message = format!("there is a {} {name} at {earlier} already; remove one", kind.noun());
                wrong.push(defined.problem(message));
            } else {
                first.insert((*kind, name.as_str()), &defined.at);
            }
        }
    }
}

/// What a document describes; refuses other versions and keys.
fn kind_of(root: &YamlNode) -> Result<DocumentKind, ComposeProblem> {
    let kind = kind_text(root)?;
    let names = DocumentKind::ALL.map(DocumentKind::as_str);
    let known = DocumentKind::ALL.into_iter().find(|known| known.as_str() == kind);
    known.ok_or_else(|| {
        let capital = names.into_iter().find(|name| name.eq_ignore_ascii_case(&kind));
        let hint = match capital.or_else(|| similar(&kind, names.into_iter())) {
            Some(meant) => format!("did you mean {meant}?"),
            None if kind == ADMISSION_POLICY => {
                "it is set with `warren cluster policy set -f FILE`".to_owned()
            }
            None => format!("there are {}", names.join(", ")),
        };
        problem(root, "kind", format!("{kind:?} is not a kind; {hint}"))
    })
}

/// The kind of a document as it is written; refuses other versions and keys.
pub(crate) fn kind_text(root: &YamlNode) -> Result<String, ComposeProblem> {
    let Some(map) = root.as_map() else {
        let message = format!("is {}; give a mapping with {}", root.type_name(), KEYS.join(", "));
        return Err(ComposeProblem::new(&root.at, "", message));
    };
    if let Some((key, entry)) = map.iter().find(|(key, _)| !KEYS.contains(&&***key)) {
        let hint = match similar(key, KEYS.into_iter()) {
            Some(meant) => format!("did you mean {meant}?"),
            None if &**key == "services" => {
                "Compose files are deployed with `warren deploy -c FILE`".to_owned()
            }
            None => format!("there are {}", KEYS.join(", ")),
        };
        let key: String = key.chars().take(64).collect();
        return Err(ComposeProblem::new(&entry.key_at, "", format!("{key:?} is not a field here; {hint}")));
    }
    let text = |key: &str| match root.get(key) {
        Some(node) => read::<String>(node, &ROOT.key(key)),
        None => Err(problem(root, "", format!("{key} is missing; give it"))),
    };
    let version = text("apiVersion")?;
    if version != API_VERSION {
        return Err(problem(root, "apiVersion", format!("{version:?} is not known; give {API_VERSION}")));
    }
    text("kind")
}

/// Name and labels, and where the name is.
fn metadata<N: DeserializeOwned>(
    root: &YamlNode,
) -> Result<(Metadata<N>, ValuePosition), Vec<ComposeProblem>> {
    let node = root.get("metadata");
    let node =
        node.ok_or_else(|| vec![problem(root, "", "metadata is missing; give `metadata: {name: NAME}`")])?;
    let found: Metadata<N> = read(node, &ROOT.key("metadata")).map_err(|problem| vec![problem])?;
    let mut wrong = Violations::default();
    validate_labels(found.labels.as_ref().unwrap_or(&BTreeMap::new()), &mut wrong);
    let wrong = problems(root, wrong, |path| format!("metadata.{path}"));
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let at = node.get("name").map_or(&node.at, |name| &name.at).clone();
    Ok((found, ValuePosition { at, path: "metadata.name".to_owned() }))
}

/// The spec of every kind but services; one that is left out is empty.
pub(crate) fn spec<T: DeserializeOwned>(root: &YamlNode) -> Result<T, Vec<ComposeProblem>> {
    let empty = YamlNode::new(YamlValue::Map(YamlMap::new()), &root.at);
    read(root.get("spec").unwrap_or(&empty), &ROOT.key("spec")).map_err(|problem| vec![problem])
}

/// The spec of a service, which has the name and the labels of `metadata`.
fn service_spec(root: &YamlNode) -> Result<ServiceSpec, Vec<ComposeProblem>> {
    let node = root.get("spec");
    let node =
        node.ok_or_else(|| vec![problem(root, "", "spec is missing; give `spec: {task: {image: IMAGE}}`")])?;
    let mut whole = node.clone();
    if let YamlValue::Map(fields) = &mut whole.value {
        for field in METADATA_FIELDS {
            if let Some(entry) = fields.get(field) {
                let message = format!("{field} is not a field here; give it in `metadata`");
                return Err(vec![ComposeProblem::new(&entry.key_at, "spec", message)]);
            }
            if let Some(given) = root.get("metadata").and_then(|metadata| metadata.get(field)) {
                fields.insert(field.into(), YamlEntry { key_at: given.at.clone(), node: given.clone() });
            }
        }
    }
    let spec: ServiceSpec = read(&whole, &ROOT.key("spec")).map_err(|problem| vec![problem])?;
    let wrong = problems(root, spec.validate(), |path| {
        let is_metadata = METADATA_FIELDS.iter().any(|field| path.starts_with(field));
        format!("{}.{path}", if is_metadata { "metadata" } else { "spec" })
    });
    if wrong.is_empty() { Ok(spec) } else { Err(wrong) }
}

pub(crate) fn checked(root: &YamlNode, wrong: Violations) -> Result<(), Vec<ComposeProblem>> {
    let wrong = problems(root, wrong, str::to_owned);
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// The parser does not say that a tab is what it does not accept.
pub(crate) fn with_hint_about_tabs(problem: ComposeProblem, text: &str) -> ComposeProblem {
    let number = usize::try_from(problem.at.line).unwrap_or(usize::MAX);
    // The parser may notice it in the next line.
    let lines = text.lines().skip(number.saturating_sub(2)).take(2);
    let is_tab = |line: &str| line[..line.len() - line.trim_start().len()].contains('\t');
    match lines.into_iter().any(is_tab) {
        true => ComposeProblem {
            message: format!("{}; indent with spaces, not tabs", problem.message),
            ..problem
        },
        false => problem,
    }
}
