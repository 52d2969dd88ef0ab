use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;
use crate::time::Timestamp;

fn key(number: u8) -> PrivateKey {
    PrivateKey::derive(&Zeroizing::new([number; KEY_BYTES]))
}

fn exchange(key: OneTimeKey) -> Exchange<'static> {
    Exchange {
        command_id: CommandId::from_uuid(uuid::Uuid::from_u128(1)),
        key,
        node_id: NodeId::from_uuid(uuid::Uuid::from_u128(2)),
        secret_ref: "site/bmc",
    }
}

fn certificate(key: &SigningKey) -> NodeCertified {
    NodeCertified {
        allowed_kinds: None,
        fingerprint: "00".repeat(32),
        not_after: Timestamp::from_micros(2),
        not_before: Timestamp::from_micros(1),
        public_key: key.verifying_key().to_bytes().to_vec(),
        renews: None,
    }
}

#[test]
fn p6_a_value_is_opened_by_its_key_for_its_question_alone() {
    let (own, other) = (key(1), key(2));
    let asked = exchange(own.public());
    let value = SecretValue::new(b"Bearer hunter2".to_vec());
    let sealed = asked.seal(&value, &mut StdRng::seed_from_u64(1)).unwrap();
    assert_eq!(own.open(&asked, &sealed).unwrap(), value);
    let command = CommandId::from_uuid(uuid::Uuid::from_u128(3));
    let node = NodeId::from_uuid(uuid::Uuid::from_u128(3));
    for wrong in [
        Exchange {
            command_id: command,
            ..asked
        },
        Exchange {
            node_id: node,
            ..asked
        },
        Exchange {
            secret_ref: "site/bm",
            ..asked
        },
        Exchange {
            key: other.public(),
            ..asked
        },
    ] {
        assert!(own.open(&wrong, &sealed).is_err(), "{wrong:?}");
    }
    assert!(other.open(&asked, &sealed).is_err());
    for bit in 0..sealed.ciphertext.len() * 8 {
        let mut altered = sealed.clone();
        altered.ciphertext[bit / 8] ^= 1 << (bit % 8);
        assert!(own.open(&asked, &altered).is_err(), "bit {bit}");
    }
    let mut altered = sealed;
    altered.encapsulated_key[0] ^= 1;
    assert!(own.open(&asked, &altered).is_err());
    altered.encapsulated_key.pop();
    assert!(own.open(&asked, &altered).is_err());
}

#[test]
fn p6_the_node_signs_every_part_of_its_question() {
    let node = SigningKey::from_bytes(&[7; 32]);
    let asked = exchange(key(1).public());
    let signature = asked.sign(&node).unwrap();
    let certificate = certificate(&node);
    assert_eq!(asked.verify(Some(&certificate), &signature), Ok(()));
    assert_eq!(asked.verify(None, &signature), Err(Unproved::NoCertificate));
    let other = Exchange {
        key: key(2).public(),
        ..asked
    };
    assert_eq!(
        other.verify(Some(&certificate), &signature),
        Err(Unproved::NotSigned)
    );
    let other = Exchange {
        secret_ref: "site/other",
        ..asked
    };
    assert_eq!(
        other.verify(Some(&certificate), &signature),
        Err(Unproved::NotSigned)
    );
    // A signature for another purpose over the same bytes.
    let bytes = asked.encode().unwrap();
    let other = dsse::sign(&node, Purpose::CommandUpdate, &bytes);
    assert_eq!(
        asked.verify(Some(&certificate), &other),
        Err(Unproved::NotSigned)
    );
}

#[test]
fn p6_a_key_that_keeps_nothing_secret_is_refused() {
    let asked = exchange(OneTimeKey([0; KEY_BYTES]));
    let value = SecretValue::new(b"x".to_vec());
    let sealed = asked.seal(&value, &mut StdRng::seed_from_u64(1));
    assert!(matches!(sealed, Err(SealError::Key(_))), "{sealed:?}");
}

#[test]
fn p6_a_value_has_a_limit_and_shows_itself_nowhere() {
    let own = key(1);
    let asked = exchange(own.public());
    let mut rng = StdRng::seed_from_u64(1);
    let most = SecretValue::new(vec![b'a'; SECRET_BYTES_MAX]);
    let sealed = asked.seal(&most, &mut rng).unwrap();
    assert_eq!(own.open(&asked, &sealed).unwrap(), most);
    let more = SecretValue::new(vec![b'a'; SECRET_BYTES_MAX + 1]);
    let told = asked.seal(&more, &mut rng).unwrap_err().to_string();
    assert_eq!(told, "the secret has 16385 bytes; the limit is 16384");
    let value = SecretValue::new(b"hunter2".to_vec());
    assert_eq!(format!("{value:?}"), "SecretValue");
    let private = format!("{own:?}");
    assert_eq!(private, format!("PrivateKey({:?})", own.public()));
}

#[test]
fn p6_a_name_has_one_form() {
    for name in [
        "a",
        "bmc",
        "site-1/bmc.admin",
        "9_x",
        "a..b",
        &"a".repeat(200),
    ] {
        assert_eq!(check_name(name), Ok(()), "{name}");
    }
    for name in [
        "",
        "A",
        "/a",
        "a/",
        "a b",
        "a\n",
        "-a",
        "ä",
        "a//b",
        "a/../b",
        "a/./b",
        "a/-b",
        &"a".repeat(201),
    ] {
        assert_eq!(check_name(name), Err(InvalidName), "{name}");
    }
}

proptest! {
    #[test]
    fn p6_every_value_comes_back_as_it_was(
        value in prop::collection::vec(any::<u8>(), 0..2_000),
        seed: [u8; 32],
        rng: u64,
    ) {
        let own = PrivateKey::derive(&Zeroizing::new(seed));
        let asked = exchange(own.public());
        let value = SecretValue::new(value);
        let sealed = asked.seal(&value, &mut StdRng::seed_from_u64(rng)).unwrap();
        prop_assert_eq!(own.open(&asked, &sealed).unwrap(), value);
    }
}
