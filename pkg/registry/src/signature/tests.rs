use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use warren_types::base64::encode_base64;

use super::*;
use crate::clients::RegistryClients;
use crate::reference::Reference;
use crate::resolve::ResolveNames;
use crate::settings::RegistrySettings;

/// Made by OpenSSL 3, as are the signatures of [`PAYLOAD`].
const ECDSA_KEY: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEUmpPtawuMTsEdQHNBOsjtJbyKgo2
rP9CwtglVkTcWulzr+jfGmls+wAZ3gOLLUFbgszImWvo9q2fRlyeyw9ifQ==
-----END PUBLIC KEY-----";
const ECDSA_SIGNATURE: &str = "MEUCICHc4YUQDmgVEb12jtvxrs8rlYr23gOslSYoy9SD5x77AiEA7Rw5VFi4RwPCAIkFZoTkgzpJ2Hak\
                               05xCN6i7aNFsACc=";
const ED25519_KEY: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAxZQ5hvQiQ/r0vSvY1tEV0N74+buz6ETKB5WCoj0zcRc=
-----END PUBLIC KEY-----";
const ED25519_SIGNATURE: &str =
    "5IdZ2OZg/Ad2oHFNdZehuNJHz44n2h0fZifnzrvJVFlGJcdsbn6u+oZbGRD3TXvnp/d9qtraW9Kg+EPmR59cCA==";
/// As cosign writes it, of the digest of nothing.
const PAYLOAD: &str = "{\"critical\":{\"identity\":{\"docker-reference\":\"registry.example.com/shop/app\"},\
                       \"image\":{\"docker-manifest-digest\":\
                       \"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"},\
                       \"type\":\"cosign container image signature\"},\"optional\":null}";

fn payload(image: &Digest, kind: &str) -> Vec<u8> {
    let image = json!({"docker-manifest-digest": image.as_str()});
    let critical = json!({"identity": {"docker-reference": "elsewhere"}, "image": image, "type": kind});
    json!({"critical": critical, "optional": {"sha256": "1"}}).to_string().into_bytes()
}

fn new_pair() -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random).unwrap()
}

fn public_key(pair: &EcdsaKeyPair) -> SignatureKey {
    let point: &[u8] = pair.public_key().as_ref();
    SignatureKey::EcdsaP256(point.try_into().unwrap())
}

fn signed(pair: &EcdsaKeyPair, payload: Vec<u8>) -> ImageSignature {
    let signature = pair.sign(&SystemRandom::new(), &payload).unwrap().as_ref().to_vec();
    ImageSignature { payload, signature }
}

#[test]
fn signatures_of_openssl_are_verified() {
    let nothing = Digest::of(b"");
    let [ecdsa, edwards]: [SignatureKey; 2] = [ECDSA_KEY, ED25519_KEY].map(|pem| pem.parse().unwrap());
    for (key, other, text) in [(ecdsa, edwards, ECDSA_SIGNATURE), (edwards, ecdsa, ED25519_SIGNATURE)] {
        let (payload, signature) = (PAYLOAD.as_bytes().to_vec(), decode_base64(text).unwrap());
        let found = ImageSignature { payload, signature };
        assert!(found.is_valid(&nothing, &[key]) && found.is_valid(&nothing, &[other, key]));
        assert!(!found.is_valid(&nothing, &[other]) && !found.is_valid(&nothing, &[]));
        assert!(!found.is_valid(&Digest::of(b"other"), &[key]));
        let mut changed = found.clone();
        changed.payload.push(b' ');
        assert!(!changed.is_valid(&nothing, &[key]));
        let mut changed = found.clone();
        changed.signature[20] ^= 1;
        assert!(!changed.is_valid(&nothing, &[key]));
        assert!(!ImageSignature { signature: Vec::new(), ..found }.is_valid(&nothing, &[key]));
    }
}

#[test]
fn only_the_signed_digest_counts() {
    let (pair, image) = (new_pair(), Digest::of(b"image"));
    let keys = [public_key(&pair)];
    let is_valid = |payload: Vec<u8>| signed(&pair, payload).is_valid(&image, &keys);
    assert!(is_valid(payload(&image, PAYLOAD_TYPE)));
    assert!(!signed(&new_pair(), payload(&image, PAYLOAD_TYPE)).is_valid(&image, &keys));
    assert!(!is_valid(payload(&Digest::of(b"other"), PAYLOAD_TYPE)));
    assert!(!is_valid(payload(&image, "atomic container signature")));
    let twice = format!(
        "{{\"critical\":{{\"type\":\"{PAYLOAD_TYPE}\",\"image\":{{\"docker-manifest-digest\":\"{}\",\
         \"docker-manifest-digest\":\"{image}\"}}}}}}",
        Digest::of(b"other")
    );
    for text in ["", "{}", "[]", "null", "{\"critical\":{}}", &image.to_string(), &twice] {
        assert!(!is_valid(text.as_bytes().to_vec()), "{text}");
    }
    let random = SystemRandom::new();
    let pair = Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref()).unwrap();
    let payload = payload(&image, PAYLOAD_TYPE);
    let signature = pair.sign(&payload).as_ref().to_vec();
    let key: &[u8] = pair.public_key().as_ref();
    let key = SignatureKey::Ed25519(key.try_into().unwrap());
    assert!(ImageSignature { payload, signature }.is_valid(&image, &[key]));
}

/// The host and port of a registry with these documents, by the end of their path; the others are unknown.
async fn registry(documents: Vec<(String, &'static str, Vec<u8>)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.unwrap_or(0) > 0 {}
            let request = String::from_utf8_lossy(&request).into_owned();
            let path = request.split(' ').nth(1).unwrap_or_default();
            let found = documents.iter().find(|(end, ..)| path.ends_with(end.as_str()));
            let (status, kind, body) = match found {
                Some((_, kind, body)) => ("200 OK", *kind, body.as_slice()),
                None => ("404 Not Found", "text/plain", &b"none"[..]),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
        }
    });
    host
}

fn layer(kind: &str, payload: &[u8], signature: &str) -> Value {
    let (digest, annotations) = (Digest::of(payload).to_string(), json!({SIGNATURE: signature}));
    json!({"mediaType": kind, "digest": digest, "size": payload.len(), "annotations": annotations})
}

fn manifest(layers: &[Value]) -> Vec<u8> {
    json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": layers}).to_string().into_bytes()
}

/// The signatures of `image` in a registry with this manifest of them, and these blobs.
async fn fetched(
    image: &Digest,
    kind: &'static str,
    manifest: Vec<u8>,
    blobs: &[&[u8]],
) -> Result<Vec<ImageSignature>, RegistryError> {
    let mut documents = vec![(format!("/v2/shop/app/manifests/sha256-{}.sig", image.hex()), kind, manifest)];
    let blob =
        |blob: &&[u8]| (format!("/blobs/{}", Digest::of(blob)), "application/octet-stream", blob.to_vec());
    documents.extend(blobs.iter().map(blob));
    let reference = format!("{}/shop/app:1", registry(documents).await);
    let mut settings = RegistrySettings::default();
    settings.policy.max_tries = 1;
    RegistryClients::new(settings).signatures(&Reference::parse(&reference).unwrap(), image, None).await
}

#[tokio::test]
async fn signatures_are_fetched_from_their_tag() {
    let image = Digest::of(b"image");
    let layers = [
        layer(SIMPLE_SIGNING, b"one", &encode_base64(b"first")),
        layer("application/octet-stream", b"other", &encode_base64(b"other")),
        layer(SIMPLE_SIGNING, b"two", "no*base64"),
        json!({"mediaType": SIMPLE_SIGNING, "digest": Digest::of(b"two").to_string(), "size": 3}),
        layer(SIMPLE_SIGNING, &[b'l'; MAX_PAYLOAD as usize + 1], &encode_base64(b"large")),
        layer(SIMPLE_SIGNING, b"two", &encode_base64(b"second")),
    ];
    let found = fetched(&image, OCI_MANIFEST, manifest(&layers), &[b"one", b"two"]).await.unwrap();
    let signature = |payload: &[u8], signature: &[u8]| ImageSignature {
        payload: payload.to_vec(),
        signature: signature.to_vec(),
    };
    assert_eq!(found, [signature(b"one", b"first"), signature(b"two", b"second")]);

    let none = registry(Vec::new()).await;
    let reference = Reference::parse(&format!("{none}/shop/app:1")).unwrap();
    let none = RegistryClients::new(RegistrySettings::default()).signatures(&reference, &image, None).await;
    assert_eq!(none, Ok(Vec::new()));
}

#[tokio::test]
async fn malformed_answers_are_no_signatures() {
    let image = Digest::of(b"image");
    let one = layer(SIMPLE_SIGNING, b"one", &encode_base64(b"first"));
    let long = [manifest(&[]), vec![b' '; MAX_MANIFEST]].concat();
    for (kind, text, expected) in [
        ("text/html", manifest(&[]), "its media type is \"text/html\""),
        (OCI_MANIFEST, b"{}".to_vec(), "it is no manifest"),
        (OCI_MANIFEST, long, "it has more than 1048576 bytes"),
        (OCI_MANIFEST, manifest(&vec![one.clone(); 33]), "it has 33 signatures, more than 32"),
        (OCI_MANIFEST, manifest(&[one]), "has no blob"),
    ] {
        let refused = fetched(&image, kind, text, &[]).await.unwrap_err();
        assert!(refused.to_string().contains(expected) && !refused.is_transient(), "{expected}: {refused}");
    }
}
