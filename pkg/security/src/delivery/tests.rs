use proptest::prelude::*;
use warren_types::Id;

use super::*;

const NODE: NodeId = NodeId(Id(3));
const ID: SecretObjectId = SecretObjectId(Id(7));
const TEXT: &[u8] = b"what is delivered";

fn call() -> (DeliveryRequester, DeliveryResponder) {
    let requester = DeliveryRequester::new(NODE).unwrap();
    let responder = DeliveryResponder::new(requester.public_key(), NODE).unwrap();
    (requester, responder)
}

fn delivery<'a>(responder: &'a DeliveryResponder, sealed: &'a [u8]) -> SealedDelivery<'a> {
    SealedDelivery { key: responder.public_key(), id: ID, number: 2, sealed }
}

#[test]
fn sealed_delivery_opens_in_its_call() {
    let (mut requester, responder) = call();
    let sealed = responder.seal(ID, 2, TEXT);
    assert!(!sealed.windows(4).any(|window| window == b"what"));
    for _ in 0..2 {
        assert_eq!(requester.open(&delivery(&responder, &sealed)).unwrap().as_slice(), TEXT);
    }
    let other = SecretObjectId(Id(8));
    let second = responder.seal(other, 1, b"");
    let second = SealedDelivery { key: responder.public_key(), id: other, number: 1, sealed: &second };
    assert!(requester.open(&second).unwrap().is_empty());
}

#[test]
fn delivery_is_bound_to_node_call_object_and_number() {
    let refused = |id, number| Err(DeliveryError::Refused { id, number });
    let (mut requester, responder) = call();
    let sealed = responder.seal(ID, 2, TEXT);
    let good = delivery(&responder, &sealed);
    let swapped = SealedDelivery { id: SecretObjectId(Id(8)), ..good };
    assert_eq!(requester.open(&swapped), refused(swapped.id, 2), "another content");
    assert_eq!(requester.open(&SealedDelivery { number: 1, ..good }), refused(ID, 1), "another number");
    assert_eq!(requester.open(&good).unwrap().as_slice(), TEXT, "a refusal costs nothing");

    let (mut later, _) = call();
    assert_eq!(later.open(&good), refused(ID, 2), "another call of the same node");

    let mut foreign = DeliveryRequester::new(NodeId(Id(4))).unwrap();
    let mistaken = DeliveryResponder::new(foreign.public_key(), NODE).unwrap();
    let sealed = mistaken.seal(ID, 2, TEXT);
    assert_eq!(foreign.open(&delivery(&mistaken, &sealed)), refused(ID, 2), "sealed for another node");
}

#[test]
fn second_manager_key_in_a_call_is_refused() {
    let (mut requester, responder) = call();
    let second = DeliveryResponder::new(requester.public_key(), NODE).unwrap();
    let sealed = responder.seal(ID, 2, TEXT);
    assert!(requester.open(&delivery(&responder, &sealed)).is_ok());
    let sealed = second.seal(ID, 2, TEXT);
    assert_eq!(requester.open(&delivery(&second, &sealed)), Err(DeliveryError::AnotherKey));
}

#[test]
fn modified_delivery_does_not_open() {
    let (mut requester, responder) = call();
    let sealed = responder.seal(ID, 2, TEXT);
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        assert!(requester.open(&delivery(&responder, &changed)).is_err(), "byte {at}");
        assert!(requester.open(&delivery(&responder, &sealed[..at])).is_err(), "cut to {at}");
    }
    assert!(requester.open(&delivery(&responder, &sealed)).is_ok());
}

/// Points of low order on curve25519, from RFC 7748 and <https://cr.yp.to/ecdh.html>.
fn weak_keys() -> Vec<[u8; PUBLIC_KEY_LEN]> {
    let (zero, mut one) = ([0; PUBLIC_KEY_LEN], [0; PUBLIC_KEY_LEN]);
    one[0] = 1;
    let order_8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800";
    let other_8 = "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157";
    let prime_less_one = "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f";
    let parsed = [order_8, other_8, prime_less_one].map(|digits| {
        let mut bytes = [0; PUBLIC_KEY_LEN];
        crate::hex::parse(digits.as_bytes(), &mut bytes).unwrap();
        bytes
    });
    [zero, one].into_iter().chain(parsed).collect()
}

#[test]
fn weak_keys_are_refused_on_both_sides() {
    for weak in weak_keys() {
        assert!(matches!(DeliveryResponder::new(&weak, NODE), Err(DeliveryError::WeakKey)), "{weak:?}");
        let (mut requester, responder) = call();
        let sealed = responder.seal(ID, 2, TEXT);
        let weak = SealedDelivery { key: &weak, ..delivery(&responder, &sealed) };
        assert_eq!(requester.open(&weak), Err(DeliveryError::WeakKey));
        let spent = requester.open(&delivery(&responder, &sealed));
        assert_eq!(spent, Err(DeliveryError::WeakKey), "its own key is used up");
    }
}

#[test]
fn keys_have_fixed_length() {
    for length in [0, 31, 33, 64] {
        let key = vec![9; length];
        assert!(
            matches!(DeliveryResponder::new(&key, NODE), Err(DeliveryError::KeyLength(found)) if found == length)
        );
        let (mut requester, responder) = call();
        let sealed = responder.seal(ID, 2, TEXT);
        let wrong = SealedDelivery { key: &key, ..delivery(&responder, &sealed) };
        assert_eq!(requester.open(&wrong), Err(DeliveryError::KeyLength(length)));
        assert!(requester.open(&delivery(&responder, &sealed)).is_ok(), "nothing was spent on it");
    }
}

#[test]
fn debug_shows_no_plaintext() {
    let (mut requester, responder) = call();
    let sealed = responder.seal(ID, 2, TEXT);
    let wrong = SealedDelivery { number: 3, ..delivery(&responder, &sealed) };
    let shown = format!("{requester:?} {responder:?} {} {wrong:?}", requester.open(&wrong).unwrap_err());
    assert!(!shown.contains("delivered"), "{shown}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(key: Vec<u8>, sealed: Vec<u8>, id: u128, number: u64) {
        let mut requester = DeliveryRequester::new(NODE).unwrap();
        let delivery = SealedDelivery { key: &key, id: SecretObjectId(Id(id)), number, sealed: &sealed };
        prop_assert!(requester.open(&delivery).is_err());
        let mut exact = [0; PUBLIC_KEY_LEN];
        exact.iter_mut().zip(&key).for_each(|(to, from)| *to = *from);
        let delivery = SealedDelivery { key: &exact, ..delivery };
        prop_assert!(requester.open(&delivery).is_err());
    }
}
