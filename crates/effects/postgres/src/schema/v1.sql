-- The first version: the tables of the control database.
CREATE SCHEMA rdpg;
CREATE SCHEMA cfsb;
CREATE SCHEMA tasks;
CREATE SCHEMA backups;
CREATE SCHEMA metrics;
CREATE SCHEMA audit;

CREATE TABLE cfsb.services (
  id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), service_id text NOT NULL UNIQUE, name text NOT NULL UNIQUE, description text NOT NULL,
  bindable bool NOT NULL DEFAULT true, dashboard_client jsonb NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now(), effective_at timestamptz NOT NULL DEFAULT now(), ineffective_at timestamptz);
CREATE TABLE cfsb.plans (
  id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), service_id text NOT NULL, plan_id text NOT NULL UNIQUE, cluster_service text NOT NULL,
  name text NOT NULL, description text NOT NULL, free bool NOT NULL DEFAULT true,
  created_at timestamptz NOT NULL DEFAULT now(), effective_at timestamptz NOT NULL DEFAULT now(), ineffective_at timestamptz);
-- In dbpass lies what proves a password, never the password.
CREATE TABLE cfsb.instances (
  id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), cluster_service text NOT NULL, cluster_id text NOT NULL, instance_id text, service_id text,
  plan_id text, organization_id text, space_id text, dbname text NOT NULL UNIQUE, dbuser text NOT NULL,
  dbpass text NOT NULL CHECK (dbpass = '' OR dbpass LIKE 'SCRAM-SHA-256$%'),
  created_at timestamptz NOT NULL DEFAULT now(), effective_at timestamptz, ineffective_at timestamptz, decommissioned_at timestamptz);
CREATE TABLE cfsb.bindings (
  id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), instance_id text NOT NULL, binding_id text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(), effective_at timestamptz, ineffective_at timestamptz);
CREATE TABLE cfsb.credentials (
  id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), instance_id text NOT NULL, binding_id text NOT NULL, host text, port text, dbuser text,
  dbpass text CHECK (dbpass = '' OR dbpass LIKE 'SCRAM-SHA-256$%'), dbname text,
  created_at timestamptz NOT NULL DEFAULT now(), effective_at timestamptz, ineffective_at timestamptz);
CREATE TABLE tasks.schedules (
  id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), cluster_id text NOT NULL, cluster_service text NOT NULL, role text NOT NULL,
  action text NOT NULL, data text NOT NULL DEFAULT '', frequency interval NOT NULL DEFAULT '1 hour', ttl int4 NOT NULL DEFAULT 3600,
  node_type text NOT NULL DEFAULT 'any', enabled bool NOT NULL DEFAULT true, last_scheduled_at timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE tasks.tasks (
  id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), cluster_id text NOT NULL, cluster_service text NOT NULL, node text NOT NULL DEFAULT '*',
  role text NOT NULL, action text NOT NULL, data text NOT NULL DEFAULT '', ttl int4 NOT NULL DEFAULT 3600,
  node_type text NOT NULL DEFAULT 'any', locked_by text, attempts int4 NOT NULL DEFAULT 0, failed_at timestamptz, error text,
  created_at timestamptz NOT NULL DEFAULT now(), processing_at timestamptz);
CREATE TABLE rdpg.watch_notifications (
  id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), host text NOT NULL, msg text NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE rdpg.events (
  id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), host text NOT NULL, key text NOT NULL, msg text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE rdpg.config (
  cluster_id text NOT NULL, key text NOT NULL, value text NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (cluster_id, key));
CREATE TABLE backups.file_history (
  id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), cluster_id text NOT NULL, dbname text NOT NULL, node text NOT NULL, file_name text NOT NULL,
  action text NOT NULL, status text NOT NULL, params jsonb NOT NULL DEFAULT '{}', created_at timestamptz NOT NULL DEFAULT now(),
  duration int4, removed_at timestamptz);
CREATE TABLE backups.retention_rules (
  dbname text NOT NULL, is_remote_rule bool NOT NULL, hours float8 NOT NULL, PRIMARY KEY (dbname, is_remote_rule));

SELECT mesh.last_write_wins(name::regclass) FROM unnest(ARRAY['cfsb.services', 'cfsb.plans', 'cfsb.instances', 'cfsb.bindings',
  'cfsb.credentials', 'tasks.schedules', 'tasks.tasks', 'rdpg.watch_notifications', 'rdpg.events', 'rdpg.config',
  'backups.file_history', 'backups.retention_rules']) name;

GRANT USAGE ON SCHEMA rdpg, cfsb, tasks, backups, metrics, audit TO quorate_apps;
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA rdpg, cfsb, tasks, backups, metrics, audit TO quorate_apps;
-- Whoever writes here has databases offered by every pooler, and who reads here sees what proves passwords: not for every application.
REVOKE ALL ON cfsb.instances, cfsb.bindings, cfsb.credentials FROM quorate_apps;
GRANT SELECT, INSERT, UPDATE ON cfsb.instances, cfsb.bindings, cfsb.credentials TO quorate_owners;

-- Closes a database to everyone, and gives back what its replication held. Acts on the node that it is called on.
CREATE FUNCTION rdpg.disable_database(name text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE slot text;
BEGIN
  IF name IN ('postgres', 'template0', 'template1') OR name = current_database() THEN
    RAISE EXCEPTION 'database % is never disabled', name USING ERRCODE = 'insufficient_privilege';
  END IF;
  IF NOT EXISTS (SELECT FROM pg_database WHERE datname = name) THEN
    RETURN;
  END IF;
  EXECUTE format('ALTER DATABASE %I WITH ALLOW_CONNECTIONS false', name);
  EXECUTE format('ALTER DATABASE %I OWNER TO quorate', name);
  PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = name AND pid <> pg_backend_pid();
  FOR slot IN SELECT slot_name FROM pg_replication_slots WHERE database = name AND NOT active LOOP
    PERFORM pg_drop_replication_slot(slot);
  END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION rdpg.disable_database(text) FROM PUBLIC;
