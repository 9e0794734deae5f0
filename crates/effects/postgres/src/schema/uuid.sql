-- Milliseconds in the first 48 bits, then the version (7), and the rest of a random UUID.
CREATE OR REPLACE FUNCTION mesh.uuidv7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
  SET search_path = pg_catalog, pg_temp AS $$
  SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
    substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::int8) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;
GRANT EXECUTE ON FUNCTION mesh.uuidv7() TO quorate_apps;
